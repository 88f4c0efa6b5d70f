"""The documentation is executed and compared with the catalogue."""

import contextlib
import doctest
import inspect
import io
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

import refbase

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
EVERY_ESTIMATOR = pytest.mark.parametrize("entry", refbase.CATALOG.values(), ids=list(refbase.CATALOG))

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass
class Block:
    language: str
    text: str
    line: int  # of its first line of content, in the page
    gap: str  # the prose since the previous block


def blocks(page):
    """Fenced blocks of a page in order."""
    source = page.read_text()
    found, end = [], 0
    for match in FENCE.finditer(source):
        line = source.count("\n", 0, match.start(2)) + 1
        found.append(Block(match[1], match[2], line, source[end : match.start()]))
        end = match.end()
    return found


def run_page(page):
    """Execute a page's Python blocks in one namespace; a `text` block right after one is its output."""
    namespace = {"__name__": page.stem}
    found = blocks(page)
    for block, following in zip(found, [*found, None][1:], strict=True):
        if block.language != "python":
            continue
        place = f"{page.name}:{block.line}"
        if ">>>" in block.text:
            test = doctest.DocTestParser().get_doctest(block.text, namespace, place, str(page), block.line - 1)
            report = io.StringIO()
            result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.write, clear_globs=False)
            namespace |= test.globs
            assert result.failed == 0, report.getvalue()
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block.text, place, "exec"), namespace)
        if following is not None and following.language == "text" and not following.gap.strip():
            assert output.getvalue() == following.text, place


WITH_CODE = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page):
    run_page(page)


def test_examples_exist():
    assert {page.stem for page in WITH_CODE} >= {"README", *refbase.CATALOG}


def test_a_wrong_output_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError):
        run_page(page)
    page.write_text("```python\n>>> 1 + 1\n3\n\n```\n")
    with pytest.raises(AssertionError):
        run_page(page)


@EVERY_PAGE
def test_links_lead_somewhere(page):
    prose = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not target.startswith(("http://", "https://", "mailto:", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"


def section(text, title, underline):
    """The body of a docstring's or a page's section."""
    pattern = rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n---|\Z)" if underline else rf"^## {title}\n(.*?)(?=^## |\Z)"
    match = re.search(pattern, text, re.DOTALL | re.MULTILINE)
    assert match, f"no section {title!r}"
    return match[1]


@EVERY_ESTIMATOR
def test_docstring_claims_what_the_catalogue_claims(entry):
    text = inspect.getdoc(getattr(refbase, entry.name))
    paragraph = section(text, "Laws", underline=True).strip().split("\n\n")[0]
    assert set(re.split(r",\s+", paragraph)) == entry.traits
    for title in ("Parameters", "Returns", "Raises", "Edge cases", "Differs from", "References", "Examples"):
        assert section(text, title, underline=True).strip()
    assert "**Definition.**" in text


@EVERY_ESTIMATOR
def test_page_claims_what_the_catalogue_claims(entry):
    text = (ROOT / entry.docs).read_text()
    assert text.startswith(f"# `{entry.name}`")
    first_list = section(text, "Laws", underline=False).strip().split("\n\n")[0]
    assert set(re.findall(r"^- `(\w+)`", first_list, re.MULTILINE)) == entry.traits
    for title in ("Definition", "Edge rules", "Worked example", "Differences", "References"):
        assert section(text, title, underline=False).strip()


def test_readme_table_is_the_catalogue():
    rows = re.findall(r"^\| \[`(\w+)`\]\(([^)]+)\) \|(.*)\|(.*)\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [row[0] for row in rows] == list(refbase.CATALOG)
    for name, page, baseline, source in rows:
        entry = refbase.CATALOG[name]
        assert page == entry.docs
        assert baseline.strip()
        for identifier in re.findall(r"\d{4}\.\d{5}", entry.citation):
            assert identifier in source, name


def test_index_is_complete():
    text = (ROOT / "docs" / "index.md").read_text()
    assert re.findall(r"^\| \[`\w+`\]\((estimators/\w+\.md)\)", text, re.MULTILINE) == [
        entry.docs.removeprefix("docs/") for entry in refbase.CATALOG.values()
    ]
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert re.findall(r"\]\(decisions/(\S+)\)", text) == records


@pytest.mark.parametrize("name", [name for name in refbase.__all__ if callable(getattr(refbase, name))])
def test_public_names_are_documented(name):
    text = inspect.getdoc(getattr(refbase, name)) or ""
    assert len(text.strip()) > 30, name


def test_verl_page_lists_every_option_with_its_default():
    from verl_ext.options import BLOCKS

    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| `([^`]*)` \|", (ROOT / "docs" / "verl.md").read_text(), re.MULTILINE)
    written = {(block, key): default for block, key, default in rows}
    spelling = {None: "null", True: "true", False: "false"}
    assert written == {
        (block, option.name): spelling.get(option.default, str(option.default))
        for block, options in BLOCKS.items()
        for option in fields(options)
    }


def test_counterexample_of_the_readme_is_one():
    shown = next(block.text for block in blocks(ROOT / "README.md") if block.text.startswith("--- "))
    law, code = shown.removeprefix("--- ").split(":", 1)[0], textwrap.dedent(shown.partition("\n")[2])
    assert law == "masked_inert"

    def centred(rewards, group_ids, valid):
        return rewards - rewards.mean()  # one group here

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code.replace("from mine import centred as estimator", ""), {"estimator": centred})
    first, second = output.getvalue().splitlines()
    assert (first, second) == ("tensor([0., 0.])", "tensor([-50.,  50.])")
    assert "# expected [0, 0]" in code
    assert "# got      [-50, 50]" in code


def test_generated_parts_are_current():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_tables_of_the_pages_can_be_made():
    command = [sys.executable, str(ROOT / "benchmarks" / "baseline_mse.py"), "--repetitions", "2", "--quick"]
    for table, estimator in (("memoryless", "shrinkage_js"), ("history", "bvblend_eb")):
        done = subprocess.run([*command, "--table", table], capture_output=True, text=True, check=True)
        assert estimator in done.stdout


def test_citation_file():
    yaml = pytest.importorskip("yaml")
    data = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(data)
    assert data["version"] == refbase.__version__
    assert data["license"] == "Apache-2.0"
