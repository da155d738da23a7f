"""The dashboard's pages in Chromium: their content, and use by mouse, by keyboard and on a phone."""

from __future__ import annotations

import io
import re
import time
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Response, expect

from core.exit_code import ExitCode
from core.job import JobState, Quantize
from core.model_format import ModelFormat
from core.model_outline import InputOutline, ModelOutline, OperatorOutline
from core.quantization import LayerAccuracy, OutputAccuracy, Quantization
from core.tokens import DEFAULT_LIFETIME_S, Scope
from core.worker import WorkerState
from records import access
from records.access import AuditEntry, Token
from records.fleet import workers
from records.fleet.workers import WorkerSession
from records.jobs import inferences, jobs, outlines, quantized_models
from records.jobs.jobs import OnnxRuntime
from records.storage import blobs
from server.access.authentication import token_digest
from tests.integration.server.conftest import Service, onnx_model
from tunefarm.cli.app import app, run

from .conftest import ADMIN, CALIBRATED, EVIL, READER, add_job, add_schedules, measure

PAGES = [
    *("#/jobs", "#/jobs/job-done", "#/jobs/job-done/tasks/w0", "#/compare?jobs=job-done,job-running"),
    *("#/devices", "#/schedules", "#/releases", "#/models", "#/access", "#/api"),
]
# The number of lines of a cell's text.
LINES = """cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].map((box) => box.top)).size;
}"""
# The most bytes that a visitor loads before the API's first answer.
MAX_PAGE_BYTES = 500_000


def open_page(page: Page, service: Service, address: str = "") -> None:
    page.goto(f"{service.url}/{address}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), pytest.param("dark", 390, marks=pytest.mark.slow_lane)]
)
def test_axe_finds_nothing_on_any_page(
    page: Page, site: Service, scheme: Literal["light", "dark"], width: int
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for address in PAGES:
        open_page(page, site, address)
        expect(page.get_by_text("Loading …")).to_have_count(0)
        found = Axe().run(page)
        assert found.violations_count == 0, (address, found.generate_report())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address


def test_pages_are_small_and_load_only_from_the_service(page: Page, site: Service) -> None:
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    open_page(page, site)
    expect(page.get_by_role("link", name="resnet18", exact=True)).to_be_visible()
    assert all(answer.url.startswith(site.url) for answer in answers)
    # Streams of events have no end.
    whole = [answer for answer in answers if not answer.url.endswith("/events")]
    assert 0 < sum(len(answer.body()) for answer in whole) < MAX_PAGE_BYTES
    # A job may have thousands of trials. This service compresses its longest answer too.
    document = page.request.get(f"{site.url}/openapi.json")
    assert document.headers["content-encoding"] == "gzip"


def test_a_jobs_answers_do_not_wait_for_the_modules(page: Page, site: Service) -> None:
    page.route("**/dashboard.js", lambda route: route.abort())
    with page.expect_response("**/v1/jobs/job-done/trials") as answer:
        page.goto(f"{site.url}/#/jobs/job-done")
    assert answer.value.ok


def test_each_response_is_requested_once(page: Page, site: Service) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(site.url)))
    open_page(page, site, "#/jobs/job-done")
    expect(page.get_by_role("img", name="Roofline").locator("canvas")).to_be_visible()
    of_job = [f"/v1/jobs/job-done{end}" for end in ("", "/tasks", "/trials")]
    answers = sorted(path for path in asked if path.startswith("/v1/"))
    assert answers == sorted([*of_job, "/v1/device-classes", "/v1/session"])


def test_a_models_name_is_not_parsed_as_html(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-failed")
    expect(page.get_by_role("heading", level=1)).to_contain_text(EVIL)
    expect(page.get_by_role("alert")).to_have_text(f"no operator {EVIL}")
    assert page.locator("img").count() == 0


def test_a_job_shows_gain_charts_and_failures(page: Page, site: Service) -> None:
    open_page(page, site)
    page.get_by_role("link", name="resnet18", exact=True).click()
    facts = page.locator("dl.facts > div")
    expect(facts.first).to_have_text("1.31×times as fast as ONNX Runtime 1.31.1")
    expect(page.get_by_text("6.52×")).to_be_visible()
    for fact in ("48.2 MBmemory of the model", "7.5 msto load it", "12.3 mJenergy of a call"):
        expect(facts.filter(has_text=fact)).to_have_count(1)
    bars = page.locator("dl.bars")
    expect(bars.locator("dt")).to_have_text(["ONNX Runtime", "untuned", "published before", "tuned"])
    expect(bars).to_contain_text("5.1 ms")
    expect(page.get_by_text("The search ended: all trials were spent.")).to_be_visible()
    for chart in ("Best latency", "Trials of each subgraph", "Time of each subgraph"):
        expect(page.get_by_role("img", name=chart).locator("canvas")).to_be_visible()
    page.get_by_text("build error").click()
    expect(page.get_by_text(f"LLVM ERROR: {EVIL}").first).to_be_visible()
    row = page.get_by_role("row", name="fused_conv2d_add_relu by winograd")
    expect(row).to_contain_text("240 µs")


def test_a_running_job_is_compared_with_onnx_runtime_by_an_estimate(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-running")
    facts = page.locator("dl.facts > div")
    expect(facts.first).to_have_text(re.compile(r"^≈ [12]\.\d+×times as fast as ONNX Runtime, estimated$"))
    expect(facts.filter(has_text="6.1 msONNX Runtime")).to_have_count(1)
    expect(page.locator("dl.pairs").first).to_contain_text(
        re.compile(r", about [12]\.\d+× as fast as ONNX Runtime")
    )


def test_a_gain_beyond_sense_is_no_percentage(page: Page, site: Service) -> None:
    """The only trial of a subgraph was disturbed, until the last quarter of the trials measured another."""
    found = site.http.get("/v1/jobs/job-done/trials").json()
    first = {task: index for index, task in reversed(list(enumerate(found["task"])))}
    slow = [1000 * secs if secs and index < 500 else secs for index, secs in enumerate(found["latency_s"])]
    assert len(first) > 3
    page.route("**/v1/jobs/job-done/trials", lambda route: route.fulfill(json={**found, "latency_s": slow}))
    open_page(page, site, "#/jobs/job-done")
    glance = page.locator("dl.pairs").first
    expect(glance).to_contain_text("× as fast, perhaps because an earlier measurement was disturbed")
    expect(glance).not_to_contain_text(re.compile(r"\d{3,}\.\d%"))


def test_a_gain_of_the_last_trial_is_not_0_trials_ago(page: Page, site: Service) -> None:
    found = site.http.get("/v1/jobs/job-done/trials").json()
    faster = [*found["latency_s"][:-1], 1e-9]
    page.route("**/v1/jobs/job-done/trials", lambda route: route.fulfill(json={**found, "latency_s": faster}))
    open_page(page, site, "#/jobs/job-done")
    expect(page.locator("dl.pairs").first).to_contain_text("faster, the last time with the last trial.")


def test_the_filter_of_jobs_is_part_of_the_url(page: Page, site: Service) -> None:
    open_page(page, site)
    words = page.get_by_role("searchbox", name="Search")
    words.fill("NET")
    words.press("Enter")
    jobs_shown = page.locator("tbody").get_by_role("rowheader")
    expect(jobs_shown).to_have_text(["mobilenet_v2", "resnet18"])
    page.get_by_role("combobox", name="State").select_option("done")
    expect(jobs_shown).to_have_text(["resnet18"])
    assert page.url.endswith("#/jobs?words=NET&state=done")
    page.reload()
    expect(jobs_shown).to_have_text(["resnet18"])
    expect(page.get_by_role("link", name="Jobs")).to_have_attribute("aria-current", "page")
    words.fill("100%")
    with page.expect_response("**/v1/jobs?**"):  # the list is looked at again, and the page drawn anew
        pass
    expect(words).to_have_value("100%")
    words.press("Enter")
    expect(page.get_by_text("No job matches.")).to_be_visible()


def test_a_list_of_jobs_is_sorted_and_kept_to_a_device(page: Page, site: Service) -> None:
    open_page(page, site, f"#/jobs?sort=ratio&device_class={CALIBRATED.key}")
    first, second = page.locator("tbody tr").first, page.locator("tbody tr").nth(1)
    expect(first).to_contain_text(re.compile(r"mobilenet_v2.*tuning.*about 1\.[4-9]\d×"))
    expect(second).to_contain_text("resnet18")
    expect(second).to_contain_text("1.31×")
    expect(second).not_to_contain_text("about")
    expect(second).to_contain_text(CALIBRATED.name)
    page.get_by_role("combobox", name="Sort by").select_option("model")
    expect(page.locator("tbody").get_by_role("rowheader")).to_have_text(
        [EVIL, "dcgan", "mobilenet_v2", "resnet18"]
    )
    assert "sort=model" in page.url
    expect(page.get_by_role("link", name="bert_base", exact=True)).to_have_count(0)  # no device yet


def test_jobs_are_compared_by_results_curves_and_subgraphs(page: Page, site: Service) -> None:
    open_page(page, site)
    for job in ("resnet18, job-done", "mobilenet_v2, job-running"):
        page.get_by_role("checkbox", name=f"Compare {job}").check()
    page.get_by_role("link", name="Compare 2 jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare 2 jobs")
    expect(page.get_by_role("img", name="Best latency").locator("canvas")).to_be_visible()
    page.get_by_role("radio", name="time").check()
    page.get_by_text("Numbers").click()
    expect(page.get_by_role("region", name="Numbers: Best latency")).to_contain_text(
        "mobilenet_v2 job-running"
    )
    subgraphs = page.get_by_role("region", name="Subgraphs of the jobs")
    expect(subgraphs.get_by_role("row", name="layer1.0.conv2")).to_contain_text("fused_conv2d1_add_add_relu")
    expect(subgraphs.get_by_role("row", name="max_pool2d")).to_contain_text(
        re.compile("faster|slower|the same")
    )
    # A job's own trials count, and what was known before it: not what another job found later.
    best = {
        job: min(secs for secs in site.http.get(f"/v1/jobs/{job}/trials").json()["latency_s"] if secs)
        for job in ("job-done", "job-running")
    }
    assert best["job-done"] != best["job-running"]
    softmax = subgraphs.get_by_role("row", name="adaptive_avg_pool2d").locator("td")
    expect(softmax.first).to_have_text(f"{best['job-done'] * 1e6:.3g} µs")
    expect(softmax.last).to_contain_text(f"{min(best.values()) * 1e6:.3g} µs")
    expect(page).to_have_title("Compare 2 jobs · tunefarm")
    open_page(page, site, "#/compare?jobs=job-done")
    expect(page.get_by_text("Select two or more jobs")).to_be_visible()


def test_jobs_without_trials_and_with_long_names_are_compared(page: Page, site: Service) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    with site.database.begin() as session:
        add_job(session, "job-long", "a_name_without_end_" * 12, time.time())
    open_page(page, site, "#/compare?jobs=job-queued,job-long")
    expect(page.get_by_text("Nothing has been measured yet.")).to_be_visible()
    page.get_by_role("heading", name="Subgraphs").click()
    expect(page.get_by_text("The jobs have no subgraph in common yet.")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    with site.database.begin() as session:
        jobs.advance(session, "job-long", {JobState.QUEUED}, JobState.CANCELLED, 5.0, message="cancelled")
    # The page asks again while a job runs.
    expect(page.get_by_text("cancelled", exact=True)).to_be_visible(timeout=15_000)
    site.http.delete("/v1/jobs/job-long").raise_for_status()


def test_jobs_can_be_tagged_and_found_by_tag(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-cancelled")
    page.get_by_role("button", name="Edit tags and notes").click()
    page.get_by_label("Tags, separated by spaces").fill("nightly a*b")
    page.get_by_label("Notes").fill("The board was too hot.")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Tags, separated by spaces").fill("nightly ci/main")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("The board was too hot.")).to_be_visible()
    page.get_by_role("link", name="nightly", exact=True).click()
    expect(page.locator("tbody").get_by_role("rowheader")).to_have_text(["dcgan nightly ci/main"])
    assert page.url.endswith("#/jobs?tag=nightly")


def test_a_job_answers_the_first_questions(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-done")
    glance = page.locator("section", has=page.get_by_role("heading", name="At a glance"))
    expect(glance).to_contain_text(re.compile(r"in the last quarter of 600 trials it became \d+\.\d% faster"))
    expect(glance).to_contain_text(re.compile(r"\d+% in layer1\.0\.conv2"))
    expect(glance).to_contain_text(
        "steady 4 repeats between 4.6 ms and 4.9 ms; none overlaps with ONNX Runtime's."
    )
    expect(glance).to_contain_text(CALIBRATED.name)
    expect(glance).to_contain_text("tunefarm_runtime.load")
    open_page(page, site, "#/jobs/job-running")
    expect(glance).to_contain_text("until then its latency is an estimate")
    expect(glance).to_contain_text(re.compile(r"about [\d.]+\sms by an estimate, [\d.]+× as fast"))
    with site.database.begin() as session:
        add_job(session, "job-noisy", "noisy", time.time() - 60, JobState.TUNING)
        jobs.set_end_to_end(session, "job-noisy", "tuned", [0.004, 0.0044, 0.006, 0.008] * 5)
        jobs.set_onnxruntime(session, "job-noisy", OnnxRuntime("1.31.1", (0.005,), 0.98))
        jobs.advance(session, "job-noisy", {JobState.TUNING}, JobState.DONE, time.time(), message="done")
    open_page(page, site, "#/jobs/job-noisy")
    expect(glance).to_contain_text("noisy 5.2 ms to 5.2 ms with 95% confidence; 20 repeats between 4 ms and")
    expect(glance).to_contain_text("8 ms; some overlap with ONNX Runtime's. Something disturbed the device")
    facts = page.locator("dl.facts > div")
    expect(facts.first).to_have_text("0.980×times as fast as ONNX Runtime 1.31.1")
    expect(facts.locator("b.gain")).to_have_count(0)
    site.http.delete("/v1/jobs/job-noisy").raise_for_status()


def test_a_rooflines_points_say_which_subgraphs_they_are(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-done")
    figure = page.locator("figure", has_text="Roofline")
    figure.get_by_text("Numbers").click()
    rows = figure.get_by_role("row")
    expect(rows).to_have_count(10)
    expect(figure).to_contain_text("layer1.0.conv2")


@pytest.mark.parametrize(
    ("address", "title"),
    [
        ("#/devices", "Devices · tunefarm"),
        ("#/jobs/job-done", "resnet18, done · tunefarm"),
        ("#/jobs/job-done/tasks/w0", "fused_conv2d_add_relu of resnet18 · tunefarm"),
    ],
)
def test_a_tab_is_named_after_its_page(page: Page, site: Service, address: str, title: str) -> None:
    open_page(page, site, address)
    expect(page).to_have_title(title)


def test_a_job_says_how_near_its_subgraphs_come_to_the_device(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-done")
    row = page.get_by_role("row", name="max_pool2d")
    expect(row).to_contain_text(re.compile(r"\d+% of (peak arithmetic|memory bandwidth): "))
    legend = page.locator("figure", has_text="Best latency").locator(".legend")
    expect(legend).to_contain_text("ONNX Runtime, measured")
    expect(legend).to_contain_text("untuned, measured")
    expect(legend).to_contain_text("tuned, measured")


def test_a_subgraph_shows_programs_and_their_predictions(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-done/tasks/w0")
    expect(page.get_by_text("for i, j, k in T.grid(56, 56, 64):")).to_be_visible()
    expect(page.get_by_text("for i_0 in T.parallel(14):")).to_be_visible()
    expect(page.get_by_text("unroll 512")).to_be_visible()
    own = page.locator("pre.script .own")
    expect(own.first).to_have_text(re.compile("^− for i, j, k in T.grid"))
    expect(own.last).to_contain_text("+")
    expect(page.locator("pre.script b")).to_have_count(3)  # the loops
    for chart in ("Predicted and measured", "Roofline"):
        expect(page.get_by_role("img", name=chart).locator("canvas")).to_be_visible()
    expect(page.get_by_text("Rank correlation")).to_contain_text("predicted 0.")
    expect(page.get_by_role("link", name="Download trace 10")).to_be_visible()
    page.get_by_role("link", name="by winograd").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("by winograd")


def test_schedules_are_found_by_operator_and_shape(page: Page, site: Service) -> None:
    open_page(page, site, "#/schedules")
    for words, number in (("POOL2d 64,56", 0), ("POOL2d 56,64", 2), ("100%", 0)):
        page.get_by_role("searchbox").fill(words)
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="Download the schedule of")).to_have_count(number)


def test_more_schedules_are_shown_at_a_press(page: Page, site: Service) -> None:
    with site.database.begin() as session:
        add_schedules(session, 130)
    open_page(page, site, "#/schedules")
    page.get_by_role("searchbox").fill("many")
    page.keyboard.press("Enter")
    links = page.get_by_role("link", name="Download the schedule of")
    for shown in (50, 100):
        expect(links).to_have_count(shown)
        page.get_by_role("button", name="More schedules").click()
    expect(links).to_have_count(130)
    expect(page.get_by_role("button", name="More schedules")).to_have_count(0)


def test_a_workloads_hash_is_shown_and_copied(page: Page, site: Service) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, site, "#/jobs/job-done/tasks/w0")
    page.get_by_role("button", name="Copy the hash w0").click()
    expect(page.get_by_role("button", name="Copy the hash w0")).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == "w0"


def test_the_audit_log_fits_its_box(page: Page, site: Service) -> None:
    entry = AuditEntry("f" * 32, "DELETE /v1/jobs/{job_id}", "s" * 200, "404", "2001:db8:" + "1" * 30)
    with site.database.begin() as session:
        access.append_audit(session, {entry: 3}, time.time())
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        open_page(page, site, "#/access")
        region = page.get_by_role("region", name="Audit log")
        expect(region).to_contain_text("s" * 200)
        assert region.evaluate("box => box.scrollWidth - box.clientWidth") <= 0


def test_short_names_stay_whole_beside_long_ones(page: Page, site: Service) -> None:
    route = "POST /v1/workers/{worker_id}:unreserve"
    entry = AuditEntry("bootstrap", route, "s" * 200, "OK", "127.0.0.1")
    with site.database.begin() as session:
        access.append_audit(session, {entry: 1}, time.time())
    page.set_viewport_size({"width": 1440, "height": 900})
    open_page(page, site, "#/access")
    row = page.get_by_role("row").filter(has_text="bootstrap").first
    for label in ("Who", "What", "From"):
        cell = row.locator(f"td[data-label={label}]")
        assert cell.evaluate(LINES) == 1, label
    open_page(page, site, "#/jobs")
    link = page.get_by_role("link", name="resnet18", exact=True)
    assert link.evaluate("link => link.getClientRects().length") == 1
    started = page.locator("td[data-label=Started]").first
    expect(started).to_have_css("white-space", "nowrap")


def test_a_token_that_expires_soon_is_announced(page: Page, site: Service) -> None:
    with site.database.begin() as session:
        for days in (13, 15):
            token = Token(
                f"id-{days}", f"for {days} days", frozenset({Scope.READ}), 1.0, time.time() + days * 86400
            )
            access.add_token(session, token, token_digest(token.id))
    open_page(page, site, "#/access")
    expect(page.get_by_text("The token for 13 days expires on")).to_be_visible()
    expect(page.get_by_text("The token for 15 days expires on")).to_have_count(0)
    expect(page.get_by_label("Valid for days")).to_have_value("90")


def test_both_maps_show_the_same_subgraphs(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-running")
    maps = page.locator("ul.treemap")
    expect(maps).to_have_count(2)
    before, after = (set(one.locator("b").all_inner_texts()) for one in maps.all())
    assert before == after


def test_a_loopback_service_explains_how_to_attach_other_machines(page: Page, site: Service) -> None:
    open_page(page, site, "#/devices")
    page.get_by_text("Attach a device").click()
    expect(page.get_by_text("tunefarm up --host 0.0.0.0 --token SECRET")).to_be_visible()
    expect(page.get_by_text("tunefarm-install")).to_have_count(0)


def test_the_devices_page_shows_health_errors_and_the_next_step(page: Page, site: Service) -> None:
    open_page(page, site, "#/devices")
    expect(page.get_by_text("Can't measure: the compiler is missing: apt-get install gcc")).to_be_visible()
    page.get_by_role("button", name="Drain epyc-1").click()
    page.get_by_role("button", name="Resume epyc-1").click()
    expect(page.get_by_role("button", name="Drain epyc-1")).to_be_visible()


def test_the_api_is_documented_without_other_sites(page: Page, site: Service) -> None:
    page.goto(f"{site.url}/docs")
    expect(page.get_by_role("heading", level=1)).to_have_text("HTTP API")
    page.get_by_role("searchbox", name="Search").fill("cancel")
    route = page.locator("details", has_text="POST /v1/jobs/{job_id}:cancel")
    route.locator("summary").click()
    expect(route.locator("pre")).to_contain_text("curl -X POST http://127.0.0.1:8760/v1/jobs/")
    expect(page.get_by_text("GET /v1/releases", exact=True)).to_have_count(0)
    page.get_by_role("searchbox", name="Search").fill("/v1/artifacts/best")
    summary = page.locator("details", has_text="GET /v1/artifacts/best").locator("summary")
    expect(summary.locator("code", has_text="model.so")).to_be_visible()
    expect(summary).not_to_contain_text("`")


def test_an_administrator_makes_and_revokes_a_token(page: Page, site: Service) -> None:
    open_page(page, site, "#/access")
    days = page.get_by_label("Valid for days")
    expect(days).to_have_value(f"{DEFAULT_LIFETIME_S / 86400:.0f}")  # as the command and the API do
    page.get_by_label("Name").fill(EVIL)
    page.get_by_label("read").check()
    page.get_by_role("button", name="Create").click()
    # The lists below have a status of their own while they load.
    expect(page.get_by_role("status").filter(has_text="tf_")).to_be_visible()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name=f"Revoke {EVIL}").click()
    expect(page.get_by_role("cell", name="revoked")).to_be_visible()


def test_an_administrator_names_an_artifact(page: Page, site: Service) -> None:
    open_page(page, site, "#/releases")
    expect(page.get_by_text("No artifact has a name yet.")).to_be_visible()
    page.get_by_label("Name").fill("production")
    for job, shown in (("job-queued", "has no artifact: name a job that is done"), ("job-done", "resnet18")):
        page.get_by_label("Job").fill(job)
        page.get_by_role("button", name="Set").click()
        expect(page.get_by_text(shown)).to_be_visible()
    expect(page.get_by_role("cell", name=CALIBRATED.name)).to_be_visible()
    expect(page.get_by_text(CALIBRATED.key)).to_have_count(0)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete production").click()
    expect(page.get_by_text("No artifact has a name yet.")).to_be_visible()


def test_a_report_shows_a_job_without_service_and_network(page: Page, site: Service, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert run(app, ["report", "job-done", "--server", site.url, "--output", str(file)]) == ExitCode.OK
    page.context.set_offline(True)
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", level=1)).to_contain_text("resnet18")
    expect(page.get_by_role("img", name="Best latency").locator("canvas")).to_be_visible()
    page.get_by_text("build error").click()
    expect(page.get_by_text(f"LLVM ERROR: {EVIL}").first).to_be_visible()
    assert Axe().run(page).violations_count == 0
    page.get_by_role("row", name="fused_conv2d_add_relu").get_by_role("link").click()
    expect(page.get_by_text("for i_0 in T.parallel(14):")).to_be_visible()


def test_a_model_is_dropped_watched_and_cancelled(page: Page, site: Service, tmp_path: Path) -> None:
    model = tmp_path / "little.onnx"
    model.write_bytes(onnx_model())
    open_page(page, site)
    page.get_by_label("Drop a model here").set_input_files(model)
    page.get_by_label("Trials, at most").fill("40")
    page.get_by_label("Until a minute gains less than").fill("1.5")
    page.get_by_role("checkbox", name="any ready device").uncheck()
    np.savez(tmp_path / "images.npz", x=np.ones((2, 3), np.float32))
    page.get_by_role("combobox", name="Quantize").select_option("int8")
    page.get_by_label("Calibration data").set_input_files(tmp_path / "images.npz")
    page.get_by_role("button", name="Tune").click()
    expect(page.get_by_role("alert")).to_have_text("choose a device")
    page.get_by_role("checkbox", name=CALIBRATED.name, exact=True).check()
    page.get_by_role("button", name="Tune").click()
    page.get_by_role("link", name="little", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("queued")
    layer = LayerAccuracy("conv_7", "Conv", kept=True, own_db=None, total_db=31.25)
    accuracy = Quantization(Quantize.INT8, False, 2, 2, 1, (OutputAccuracy("y", 30.0),), (layer,))
    with site.database.begin() as session:
        [job] = [job for job in jobs.list_jobs(session, 50, None) if job.request.model_name == "little"]
        quantized_models.put(session, job.request, None, blobs.put(session, b"quantized"), accuracy)
        jobs.advance(session, job.id, {JobState.QUEUED}, JobState.TUNING, 5.0, message="searching")
    # The page learns of it from an event.
    expect(page.get_by_role("heading", level=1)).to_contain_text("tuning")
    expect(page.get_by_role("row", name="conv_7")).to_contain_text("float32exact31.3 dB")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Cancel little").click()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel little").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("cancelled")
    page.get_by_role("button", name="Repeat little").click()
    page.get_by_role("link", name="the new job").click()
    expect(page.get_by_text("0 / 40")).to_be_visible()


def test_an_inference_job_offers_its_outputs_and_is_repeated(page: Page, site: Service) -> None:
    file = io.BytesIO()
    np.savez(file, x=np.ones((2, 3), np.float32))
    inputs = site.http.post("/v1/datasets", content=file.getvalue()).json()["sha256"]
    job = site.http.post("/v1/jobs/job-done/inferences", json={"inputs": inputs}).json()
    with site.database.begin() as session:
        inferences.set_outputs(session, job["id"], blobs.put(session, b"outputs"))
        jobs.advance(session, job["id"], {JobState.QUEUED}, JobState.DONE, 5.0, message="worker board ran it")
    page.goto(f"{site.url}/#/jobs/{job['id']}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the outputs").click()
    assert download.value.path().read_bytes() == b"outputs"
    page.get_by_role("button", name="Repeat resnet18").click()
    page.get_by_role("link", name="the new job").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("queued")
    again = site.http.get(f"/v1/jobs/{page.url.rpartition('/')[2]}").json()
    assert (again["infers"], again["id"] != job["id"]) == ("job-done", True)


def test_a_file_that_is_no_model_is_refused_in_words(page: Page, site: Service, tmp_path: Path) -> None:
    wrong = tmp_path / "photo.onnx"
    wrong.write_bytes(b"no model")
    open_page(page, site)
    page.get_by_label("Drop a model here").set_input_files(wrong)
    expect(page.get_by_role("alert")).to_contain_text("ONNX")
    page.get_by_label("Shapes of dynamic inputs").fill("x=1;3")
    page.get_by_role("button", name="Tune").click()
    expect(page.get_by_role("alert")).to_contain_text("a shape is like input=1,3,224,224, not x=1;3")
    page.get_by_label("Shapes of dynamic inputs").fill("")
    page.get_by_role("button", name="Tune").click()
    expect(page.get_by_role("alert")).to_contain_text("ONNX")


def test_a_dropped_model_shows_its_inputs_and_operators_before_any_job(
    page: Page, site: Service, tmp_path: Path
) -> None:
    model = tmp_path / "custom.onnx"
    model.write_bytes(onnx_model(7))
    open_page(page, site)
    page.get_by_label("Drop a model here").set_input_files(model)
    expect(page.get_by_text("Reading the model's inputs and operators")).to_be_visible()
    inputs = (InputOutline("image", "float32", ("batch", 3, 224, 224)), InputOutline(EVIL, "int64", None))
    operators = (OperatorOutline("Conv", 20, True), OperatorOutline("acme.Blend", 2, False))
    with site.database.begin() as session:
        sha = sha256(onnx_model(7)).hexdigest()
        outlines.put(session, sha, ModelOutline(ModelFormat.ONNX, inputs, ("logits",), operators))
    outline = page.locator("dl.outline")
    expect(outline).to_contain_text("image float32 [batch, 3, 224, 224]")
    expect(outline).to_contain_text(f"{EVIL} int64 of any shape")
    expect(outline).to_contain_text("Conv 20, acme.Blend 2")
    expect(page.get_by_role("alert")).to_have_text(re.compile(r"^acme\.Blend 2: a job would fail\."))
    expect(page.get_by_placeholder("image=?,3,224,224")).to_be_visible()
    assert Axe().run(page).violations_count == 0
    page.get_by_role("button", name="Tune").click()
    expect(page.get_by_role("link", name="custom", exact=True)).to_be_visible()
    uploads = [
        entry for entry in site.http.get("/v1/jobs").json()["items"] if entry["model_name"] == "custom"
    ]
    assert [job["model"] for job in uploads] == [sha]


def test_the_focus_stays_where_a_button_disappears(page: Page, site: Service) -> None:
    """WCAG 2.4.3: the next key works from the same place, not from the top of the page."""
    page.on("dialog", lambda dialog: dialog.accept())

    def press(name: str) -> None:
        page.get_by_role("button", name=name, exact=True).focus()
        page.keyboard.press("Enter")

    with site.database.begin() as session:
        add_job(session, "job-focus", "focused", time.time(), JobState.QUEUED)
        for number in range(2):
            named = Token(f"focus-{number}", f"focus {number}", frozenset({Scope.READ}), time.time())
            access.add_token(session, named, token_digest(f"focus {number}"))
    # A row that loses its only button gets the focus.
    open_page(page, site, "#/access")
    press("Revoke focus 0")
    expect(page.get_by_role("row", name="focus 0 read revoked")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") != "", "the page goes on from there"
    # Another button takes the place of the last.
    open_page(page, site)
    press("Cancel focused")
    expect(page.get_by_role("button", name="Repeat focused")).to_be_focused()
    open_page(page, site, "#/devices")
    press("Drain epyc-1")
    expect(page.get_by_role("button", name="Resume epyc-1")).to_be_focused()
    press("Resume epyc-1")
    expect(page.get_by_role("button", name="Drain epyc-1")).to_be_focused()
    press("Calibrate epyc-1")
    expect(page.get_by_role("button", name="Calibrate epyc-1")).to_have_text("Calibrates soon")
    expect(page.get_by_role("button", name="Calibrate epyc-1")).to_be_focused()
    # A row that disappears leaves the focus to the next one, then to its section.
    for name in ("first", "second"):
        site.http.put(f"/v1/releases/{name}", json={"job": "job-done"}).raise_for_status()
    open_page(page, site, "#/releases")
    press("Delete first")
    expect(page.get_by_role("row", name="second")).to_be_focused()
    press("Delete second")
    expect(page.locator("section", has_text="No artifact has a name yet.")).to_be_focused()


def test_the_focus_is_not_taken_from_a_user_who_left(page: Page, site: Service) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    with site.database.begin() as session:
        add_job(session, "job-left", "left", time.time(), JobState.QUEUED)
    open_page(page, site)
    page.get_by_role("button", name="Cancel left").focus()
    page.get_by_role("heading", level=1).click()
    site.http.post("/v1/jobs/job-left:cancel").raise_for_status()
    expect(page.get_by_role("button", name="Repeat left")).to_be_visible(timeout=20_000)
    expect(page.locator("main")).to_be_focused()


def test_the_keyboard_is_enough(page: Page, site: Service) -> None:
    open_page(page, site)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    link = page.locator("a[href='#/jobs/job-done']")
    for _ in range(120):
        page.keyboard.press("Tab")
        if link.evaluate("one => one === document.activeElement"):
            break
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("resnet18")
    expect(page.locator("main")).to_be_focused()


def test_a_token_signs_in_and_out(page: Page, guarded: Service) -> None:
    open_page(page, guarded)
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("doesn't know the token")
    page.get_by_label("Token").fill(READER)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    # A reader can't submit.
    expect(page.get_by_label("Drop a model here")).to_have_count(0)
    assert "tunefarm" not in page.evaluate("document.cookie")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.get_by_label("Token").fill(ADMIN)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Drop a model here")).to_be_attached()


def test_an_administrator_reserves_a_device(page: Page, guarded: Service) -> None:
    worker = WorkerSession("epyc-1", "s1", WorkerState.READY, CALIBRATED)
    with guarded.database.begin() as session:
        workers.register(session, worker, time.time())
    open_page(page, guarded, "#/devices")
    page.get_by_label("Token").fill(ADMIN)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Reserve epyc-1").click()
    expect(page.get_by_label("Reserve for").locator("option")).to_have_text(["yourself", "admin of the test"])
    page.get_by_label("Reserve for").select_option("admin of the test")
    page.get_by_label("Minutes").fill("90")
    page.get_by_role("button", name="Reserve", exact=True).click()
    expect(page.get_by_text(re.compile("^Reserved for admin of the test until"))).to_be_visible()
    page.get_by_role("button", name="End the reservation of epyc-1").click()
    expect(page.get_by_role("button", name="Reserve epyc-1")).to_be_visible()


def test_a_job_is_repeated_with_changes_on_two_devices(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-done")
    page.get_by_role("link", name="Repeat resnet18 with changes").click()
    expect(page.get_by_label("Trials, at most")).to_have_value("600")
    expect(page.get_by_label("Minutes, at most")).to_have_value("30")
    expect(page.get_by_label("Shapes of dynamic inputs")).to_have_value("input=1,3,224,224")
    page.get_by_role("button", name="A first look: 5 minutes").click()
    expect(page.get_by_label("Trials, at most")).to_have_value("")
    page.get_by_role("checkbox", name=CALIBRATED.name, exact=True).check()
    with site.database.begin() as session:
        before = {job.id for job in jobs.list_jobs(session, 50, None)}
    page.get_by_role("button", name="Tune").click()
    expect(page.get_by_text("again with changes")).to_have_count(0)
    with site.database.begin() as session:
        native, chosen = (job for job in jobs.list_jobs(session, 50, None) if job.id not in before)
    assert {job.request.target for job in (native, chosen)} == {"native", CALIBRATED.key}
    assert {(job.request.budget.minutes, job.request.shapes["input"]) for job in (native, chosen)} == {
        (5.0, (1, 3, 224, 224))
    }


def test_a_phone_shows_the_whole_menu(page: Page, guarded: Service) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    open_page(page, guarded, "#/access")
    page.get_by_label("Token").fill(ADMIN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Access")
    menu = page.get_by_role("navigation", name="Pages")
    assert menu.evaluate("menu => menu.scrollWidth <= menu.clientWidth")
    expect(menu.get_by_role("link")).to_have_count(7)
    for link in menu.get_by_role("link").all():
        expect(link).to_be_in_viewport(ratio=1)


def test_a_phone_shows_a_job_in_three_screens(page: Page, site: Service) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_page(page, site, "#/jobs/job-done")
    expect(page.get_by_role("img", name="Best latency").locator("canvas")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight") <= 3 * 844
    for title in (
        "The whole model on the device",
        "Trials and time of each subgraph",
        "Roofline",
        "Subgraphs",
    ):
        page.locator("summary", has_text=title).press("Enter")
    expect(page.get_by_role("img", name="Roofline").locator("canvas")).to_be_visible()
    expect(page.get_by_role("row", name="max_pool2d")).to_contain_text("52")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert Axe().run(page).violations_count == 0


def test_a_job_of_ten_thousand_trials_stays_small(page: Page, site: Service) -> None:
    with site.database.begin() as session:
        add_job(session, "job-large", "large", time.time() - 9000, JobState.TUNING)
        measure(session, "job-large", time.time() - 8000, 10_000)
        jobs.advance(session, "job-large", {JobState.TUNING}, JobState.DONE, time.time(), message="done")
    sizes: list[int] = []
    page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
    open_page(page, site, "#/jobs/job-large")
    expect(page.get_by_role("img", name="Roofline").locator("canvas")).to_be_visible()
    assert 0 < sum(sizes) < MAX_PAGE_BYTES
    # Charts and tables hold a part of the trials.
    assert page.evaluate("document.querySelectorAll('*').length") < 1500
    site.http.delete("/v1/jobs/job-large").raise_for_status()


def test_a_table_of_subgraphs_aligns_its_numbers_right(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-done")
    row = page.get_by_role("row", name=re.compile("^ *max_pool2d"))
    for label in ("Times", "Trials", "First", "Best", "Share"):
        expect(row.locator(f"td[data-label={label}]")).to_have_css("text-align", "right")


def test_numbers_are_aligned_right_and_keep_their_units(page: Page, site: Service) -> None:
    for address in ("#/jobs", "#/jobs/job-done", "#/jobs/job-done/tasks/w0", "#/schedules"):
        open_page(page, site, address)
        expect(page.locator("td", has_text=re.compile("[mµ]s$")).first).to_be_visible()
        cells = page.evaluate(
            "[...document.querySelectorAll('tbody > tr > td:not(:first-child, :has(progress))')]"
            ".map((one) => [one.innerText.trim(), getComputedStyle(one).textAlign])"
        )
        numbers = [pair for pair in cells if re.fullmatch(r"[\d.,]+(\s?([mµn]?s|×|%|.?FLOP/s))?", pair[0])]
        assert len(numbers) > 1, address
        assert {align for _, align in numbers} == {"right"}, address
        # A no-break space is before each unit.
        text = page.locator("main").text_content() or ""
        assert re.findall(r"\d (?:[mµn]?s|h|min|%|[kMG]?i?B|.?FLOP/s|days)\b", text) == [], address


def test_the_arrow_keys_read_a_charts_values(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-done")
    chart = page.locator("figure", has_text="Best latency")
    legend = chart.locator(".legend")
    plot = chart.get_by_role("img")
    expect(plot.locator("canvas")).to_be_visible()
    plot.focus()
    for key, shown in (
        ("End", "trials 600"),
        ("Home", "trials 1"),
        ("ArrowRight", "trials 9"),
        ("ArrowLeft", "trials 1"),
    ):
        page.keyboard.press(key)
        expect(legend.get_by_role("listitem", include_hidden=True).first).to_have_text(shown)
    expect(legend).to_contain_text("ONNX Runtime, measured 6.1 ms")
    page.keyboard.press("Escape")
    expect(legend).not_to_contain_text("6.1 ms")
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    expect(chart.get_by_text("Numbers")).to_be_focused()
    expect(legend).not_to_contain_text("6.1 ms")
    # On a roofline, they go from subgraph to subgraph.
    roofline = page.locator("figure", has_text="Roofline")
    roofline.get_by_role("img").focus()
    names = set()
    for _ in range(9):
        page.keyboard.press("ArrowRight")
        names.add(roofline.locator(".legend li").first.inner_text())
    assert len(names) == 9
    # A small part of a map has no room for its words, so the map's title shows them.
    maps = page.locator("figure", has_text="With the best known program")
    maps.get_by_role("link").last.focus()
    expect(maps.locator("figcaption b")).to_have_text("adaptive_avg_pool2d")


def test_a_cost_model_of_one_version_shows_its_points(page: Page, site: Service) -> None:
    versions = site.http.get(f"/v1/cost-models/{CALIBRATED.key}/versions").json()
    only = {**versions, "items": versions["items"][:1]}
    page.route("**/v1/cost-models/*/versions", lambda route: route.fulfill(json=only))
    open_page(page, site, "#/models")
    charts = page.get_by_role("img", name="Accuracy")
    expect(charts.locator("canvas")).to_have_count(3)
    # The axes and their labels are grey. A point has about thirty pixels in its series' colour.
    coloured = """([...canvases]) => canvases.every((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const pixels = new Map();
      for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, alpha] = data.slice(at, at + 4);
        const isGrey = Math.max(red, green, blue) - Math.min(red, green, blue) < 60;
        const colour = [red, green, blue].join();
        if (alpha === 255 && !isGrey) pixels.set(colour, (pixels.get(colour) ?? 0) + 1);
      }
      return [...pixels.values()].filter((count) => count >= 10).length === 2;
    })"""
    page.wait_for_function(coloured, arg=charts.locator("canvas").element_handles())


def test_escape_closes_a_form_and_returns_the_focus(page: Page, site: Service) -> None:
    open_page(page, site, "#/jobs/job-done")
    button = page.get_by_role("button", name="Edit tags and notes")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Tags, separated by spaces")).to_be_focused()
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
