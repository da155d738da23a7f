"""What makes the documentation site of the documents: `mkdocs.yml` names it."""
