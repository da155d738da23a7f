// Puts a field above each table in a .filterable: only rows that hold every word stay visible.
for (const place of document.querySelectorAll(".filterable")) {
  const rows = [...place.querySelectorAll("tbody tr")];
  const field = Object.assign(document.createElement("input"), { type: "search", placeholder: `Filter ${rows.length} rows` });
  field.setAttribute("aria-label", "Filter the rows of this table");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  if (rows.length > 8) place.prepend(field);
}
