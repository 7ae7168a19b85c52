"""Find phrases that native speakers do not use, in Markdown and in Python files; part of ``make lint``.

python tools/check_prose.py [FILE...]        default: the files in git that FILES matches

In Python files it checks docstrings, comments, and string literals of at least three words, such as messages.
Vale has rules of this kind, but its packages on PyPI and npm download the program from GitHub.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

FOLDERS = "dgc_lab|dgc_lab_grading|tools|benchmarks|colab|hub"
FILES = re.compile(rf"(?!docs/archive/).*\.md|(?!tools/check_prose)({FOLDERS})/.*\.py")
# Phrases as regular expressions, in which a space matches any white space, and a suggestion for each.
RULES = {
    r"what (is|are|was|were) (not \w+|to be \w+|sent|kept|left|asked|wanted)": "name it: the payload",
    r"who(so)?ever": "name them: the student",
    r"(?<!or\s)(?<!matter\s)what (it|he|she|one|they) (is|was|are|were) (asked|given|told)": "its configuration",
    r"(is|are|was|were|be|been) told(?! apart)": "receives, is configured",
    r"(go|goes|going|gone|went|sent|sends?|travels?|exchanged) whole": "is sent uncompressed",
    r"puts? (them |it |\w+ )?down": "kills, stops, stores",
    r"(comes?|came) to rest": "converges",
    r"(goes|gone|went|going) on (with|from)": "continues, resumes",
    r"(looks?|looked|looking) (it|them|\w+ \w+) over|looked over": "checks, reviews",
    r"hand(s|ed)? (it |them )?in again|handed over": "submits again; sends",
    r"(?<=,\s)(whatever (it|else)|(however|wherever) it)": "name the cases, or omit it",
    r"what (a|an|the) [^.?!|]{1,60}? weighs?": "how large is ...?",
    r"by chance (is|are)|chance (decides|says)": "is random",
    r"(two|three|four) things to see": "notice two things",
    r"(of|from|with|by) that (it|they|the \w+) (knows?|needs?|takes?|gets?|has|have)": "of which it knows",
    r"(right|wrong|is|are) in the mean": "unbiased; on average",
    r"cannot be had": "is not available",
    r"(points|values|numbers) that cannot be": "invalid points",
    r"a \S+ of one's own": "a custom ...",
    r"(brings?|brought) (all|everything|everybody) back": "restarts all",
    r"(digits|pictures|examples) in (ten|a hundred)": "90 % of the digits",
    r"what (it|the \w+) (is|was) made of": "its composition",
    r"left to the night|for the night": "runs only at night",
    r"(measured|made|built|written) anew": "again",
    r"(bytes|kB|MB|ms|µs|seconds) a (step|hop|rank|worker)": "per step",
    r"as asked": "as requested; the ratio",
    r"nothing exempt": "all tensors compressed",
}
PATTERNS = [(re.compile(rf"\b(?:{rule})\b".replace(" ", r"\s+"), re.IGNORECASE), hint) for rule, hint in RULES.items()]
# Inline code, links, HTML tags and formulas.
NO_PROSE = re.compile(r"``.*?``|`[^`]*`|\]\([^)\s]*\)|<[^<>\n]*>|\$[^$\n]*\$", re.DOTALL)
SENTENCE = re.compile(r"\S\s+\S+\s+\S")  # at least three words
EXAMPLE = re.compile(r"(?ms)^ *>>>.*?(?=\n *\n|\Z)")
BLOCK = re.compile(r"(?ms)\A---\n.*?^---$|^ *(`{3,}|~{3,}).*?^ *\1`*~*$")  # front matter and code fences


def prose(text: str, python: bool) -> list[tuple[int, str]]:
    """Return the line number and text of each part of a file that people read."""
    if not python:
        return [(1, BLOCK.sub(blank, text))]
    parts: list[tuple[int, str]] = []
    seen = set()  # ids of docstrings, and of the parts of f-strings
    for node in ast.walk(ast.parse(text)):  # parents first
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node) is not None:
            line = node.body[0].lineno
            source = "\n".join(text.splitlines()[line - 1 : node.body[0].end_lineno])
            parts.append((line, EXAMPLE.sub(blank, source)))
            seen.add(id(node.body[0].value))
        elif isinstance(node, ast.JoinedStr):
            seen.update(map(id, node.values))
        if id(node) not in seen and SENTENCE.search(words := literal(node)):
            parts.append((node.lineno, words))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, words = token.start[0], f"{token.string.lstrip('#')}\n"
            if parts and parts[-1][1].endswith("\n") and parts[-1][0] + parts[-1][1].count("\n") == line:
                line, before = parts.pop()  # the comment continues on this line
                words = before + words
            parts.append((line, words))
    return parts


def literal(node: ast.AST) -> str:
    """Return the text of a string or f-string, with "_" for each formatted value; "" for other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or "_" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def blank(match: re.Match) -> str:
    """Replace everything but line breaks."""
    return re.sub(r"[^\n]", "_", match[0])


def check(text: str, python: bool) -> list[tuple[int, str, str]]:
    """Return the line, phrase and suggestion of each finding.

    Example:
        >>> check("Fine.\\n\\nThe rest goes\\nwhole, like `goes whole`.", python=False)
        [(3, 'goes whole', 'is sent uncompressed')]
    """
    found = []
    for start, part in prose(text, python):
        words = NO_PROSE.sub(blank, part)
        for pattern, hint in PATTERNS:
            for match in pattern.finditer(words):
                line = start + words.count("\n", 0, match.start())
                found.append((line, re.sub(r"\s+", " ", match[0]), hint))
    return sorted(found)


def main(names: list[str]) -> int:
    """Print the findings; return the exit status: 1 if there are any."""
    if not names:
        listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout
        names = [name for name in listed.splitlines() if FILES.fullmatch(name) and Path(name).is_file()]
    status = 0
    for name in names:
        for line, phrase, hint in check(Path(name).read_text(encoding="utf-8"), name.endswith(".py")):
            print(f"{name}:{line}: {phrase} → {hint}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
