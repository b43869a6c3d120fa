"""docs/checking.md: the output of its examples, and its tables of rules, claims, formats and mutants."""

import contextlib
import re
from collections import Counter
from dataclasses import fields

import pytest

from attnshape.checks.rules.pages import FAMILIES, Page, codes, codes_under, page
from attnshape.checks.rules.registry import RULES
from attnshape.comments.verify import CODES as WRITTEN
from attnshape.options.claims import Claims, parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from attnshape.reporters.registry import formats_for
from tests.comments.planted_faults import FAULTS
from tests.docs.pages import DOCS, assert_example_output, assert_page_part, calls
from tests.mutants.cases import PAIRS, UNFOUND, UNUSUAL, Pair, function
from tests.readme.test_readme import BLOCK

PAGE = DOCS / "checking.md"
CLAIM = re.compile(r'`--claim "?([^`"]+)"?`')
CONSOLE = list(BLOCK.finditer(PAGE.read_text()))
FREE = "No claim is needed."
REQUIRED = "It is reported only with"


def how_it_is_detected(one: Page) -> str:
    return " ".join(one.sections["How it is detected"].split())


def claims_needed(one: Page) -> str:
    """Return the claims that a finding needs, according to its page."""
    how = how_it_is_detected(one)
    if FREE in how:
        return ""
    claims = ", ".join(f"`{claim}`" for claim in dict.fromkeys(CLAIM.findall(how)))
    return claims if REQUIRED in how else f"for some: {claims}"


def codes_table() -> str:
    mutants = Counter([pair.code for pair in PAIRS] + [fault.code for fault in FAULTS if fault.code is not None])
    lines = ["| code | what is wrong | rule | claim | mutants |", "| --- | --- | --- | --- | --: |"]
    for family, title in FAMILIES.items():
        lines.append(f"| **{family}** | **{title}** | | | |")
        for code in codes_under(family):
            finders = [rule.__name__.rpartition(".")[2] for rule in RULES if code in rule.CODES]
            finders += ["comments"] if code in WRITTEN else []
            one = page(code)
            lines.append(f"| {code} | {one.title} | {', '.join(finders)} | {claims_needed(one)} | {mutants[code]} |")
    lines = [line.replace("|  |", "| |") for line in lines]
    every = len(PAIRS) + len(UNFOUND)
    lines += [
        "",
        f"{len(mutants)} codes. attnshape finds all but {len(UNFOUND)} of the {every} mutants of code, and all but",
    ]
    missed = [fault for fault in FAULTS if fault.code is None]
    lines += [
        f"{len(missed)} of the {len(FAULTS)} mutants of shape comments ([comments.md](comments.md)).",
        "",
    ]
    return "\n".join(lines)


def unusual_table() -> str:
    kinds: dict[str, list[str]] = {}
    for unusual in UNUSUAL:
        kinds.setdefault(unusual.file.rpartition("/")[2].removesuffix(".py"), []).append(unusual.name.replace("_", " "))
    lines = ["| about | | which |", "| --- | --: | --- |"]
    lines += [f"| {kind} | {len(names)} | {', '.join(names)} |" for kind, names in kinds.items()]
    return "\n".join([*lines, "", f"{len(UNUSUAL)} in all, none with an error.", ""])


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table whose header begins with this heading, each as a list of cells."""
    table = PAGE.read_text().partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def claims_of(pair: Pair) -> list[str]:
    """Return the claims of a mutant's case."""
    _, _, *rest = function(pair, pair.wrong)(**pair.sizes[0])
    return list(rest[1]) if len(rest) > 1 else []


def test_example_output_matches_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert_example_output(PAGE)


def test_page_has_examples_of_each_use() -> None:
    assert "check" in calls(PAGE)
    assert len(CONSOLE) >= 2
    assert "Traceback" not in PAGE.read_text()


def test_codes_match_the_rules_and_the_mutants() -> None:
    assert_page_part(PAGE, "codes", codes_table())


def test_unusual_code_matches_the_tests() -> None:
    assert_page_part(PAGE, "unusual", unusual_table())


@pytest.mark.parametrize("code", codes())
def test_claims_of_a_code_match_its_mutants(code: str) -> None:
    claimed = [bool(claims_of(pair)) for pair in PAIRS if pair.code == code] or [False]
    how = how_it_is_detected(page(code))
    if FREE in how:
        assert not all(claimed)
    if REQUIRED in how:
        assert all(claimed)


def test_every_claim_is_in_the_table() -> None:
    claims = parse_claims(example.strip("`") for _, _, example in rows("claim"))
    assert [field.name for field in fields(Claims) if not getattr(claims, field.name)] == []
    assert len(claims.texts) == len({example.partition("=")[0] for _, _, example in rows("claim")})


def test_every_format_is_in_the_table() -> None:
    assert [name.strip("`") for name, _ in rows("`--format`")] == formats_for("report")


@pytest.mark.slow
def test_documented_library_findings_are_found() -> None:
    findings = re.findall(r"\((AS\d{3}) at `(\w+)\.py:(\d+)`\)", PAGE.read_text())
    assert len(findings) == 2
    for code, module, line in findings:
        pytest.importorskip(module)
        case = f"tests/libraries/cases/efficient_cases.py:{module.partition('_')[0]}"
        report = check_request(TargetSpec(case), RunOptions(), Claims(), 300.0, contextlib.nullcontext)
        places = [
            (finding.code, finding.source.file, finding.source.line)
            for finding in report.findings
            if finding.source is not None
        ]
        assert places == [(code, f"{module}/{module}.py", int(line))]
