"""docs/checking.md: its examples print what it says, and its tables are those of the probes, rules and test-bed."""

import re

from tests.docs.pages import DOCS

PAGE = DOCS / "checking.md"
CLAIM = re.compile(r'`--claim "?([^`"]+)"?`')
CONSOLE = list(BLOCK.finditer(PAGE.read_text()))
MESSAGE_WIDTH = 130


def claims_of(one: Page) -> str:
    """Return which claims a rule's page says that its finding needs."""
    how = " ".join(one.sections["How it is shown"].split())
    if "No claim is needed." in how:
        return ""
    claims = ", ".join(f"`{claim}`" for claim in dict.fromkeys(CLAIM.findall(how)))
    return claims if "It counts only with" in how else f"for some: {claims}"


def codes_table() -> str:
    styles = Counter(pair.code for pair in PAIRS)
    lines = ["| code | what is wrong | probe | claim | mutants found |", "| --- | --- | --- | --- | --: |"]
    for family, title in FAMILIES.items():
        lines.append(f"| **{family}** | **{title}** | | | {sum(styles[code] for code in codes_under(family))} |")
        for code in codes_under(family):
            finders = [probe.__name__.rpartition(".")[2] for probe in PROBES if code in probe.CODES]
            one = page(code)
            lines.append(f"| {code} | {one.title} | {', '.join(finders)} | {claims_of(one)} | {styles[code]} |")
    return "\n".join([*lines, "", f"{len(styles)} codes, {len(PAIRS)} mutants.", ""])


def unusual_table() -> str:
    kinds: dict[str, list[str]] = {}
    for one in UNUSUAL:
        kinds.setdefault(one.file.rpartition("/")[2].removesuffix(".py"), []).append(one.name.replace("_", " "))
    lines = ["| kind | | which |", "| --- | --: | --- |"]
    lines += [f"| {kind} | {len(names)} | {', '.join(names)} |" for kind, names in kinds.items()]
    return "\n".join([*lines, "", f"{len(UNUSUAL)} in all.", ""])


def test_examples_print_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    examples_print_what_the_page_says(PAGE)


def test_the_page_has_examples_of_each_use() -> None:
    assert {"check"} <= calls(PAGE)
    assert len(CONSOLE) >= 2
    assert "Traceback" not in PAGE.read_text()


@pytest.mark.parametrize("block", CONSOLE, ids=[block["command"][:60] for block in CONSOLE])
def test_command_prints_what_the_page_says(block: re.Match[str]) -> None:
    printed = run_in_terminal(block["command"])
    if UPDATES:
        old, new = block.group(), f"```console\n$ {block['command']}\n{printed}```"
        PAGE.write_text(PAGE.read_text().replace(old, new))
        return
    assert printed == block["output"]


def test_the_codes_are_those_of_probes_rules_and_test_bed() -> None:
    part_is(PAGE, "codes", codes_table())


def test_the_unusual_code_is_that_of_the_test_bed() -> None:
    part_is(PAGE, "unusual", unusual_table())
