"""Bridges between libcst, which keeps comments and blanks, and the rules' view of a kernel."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import libcst as cst

_BLANK = cst.Module([])
Statement = cst.BaseStatement
S = TypeVar("S", bound=cst.BaseStatement)


class Block(list[cst.BaseStatement]):
    """Statements and the comments below the last of them."""

    def __init__(self, statements: Iterable[cst.BaseStatement] = (), footer: Iterable[cst.EmptyLine] = ()) -> None:
        super().__init__(statements)
        self.footer = list(footer)


def code(node: cst.CSTNode) -> str:
    """The node's text."""
    return _BLANK.code_for_node(node).strip()


def expression(node: cst.CSTNode) -> ast.expr:
    """The node as ``ast`` has it; not to be changed."""
    return _parsed(code(node))


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def parse(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


def statement(text: str) -> cst.SimpleStatementLine:
    parsed = cst.parse_statement(text)
    assert isinstance(parsed, cst.SimpleStatementLine)
    return parsed


def call_in(node: cst.CSTNode) -> cst.Call | None:
    """The call of a statement that is nothing but a call."""
    if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
        small = node.body[0]
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            return small.value
    return None


def body_of(node: cst.CSTNode) -> list[Statement]:
    """The statements of a compound statement's block."""
    block = getattr(node, "body", None)
    if isinstance(block, cst.IndentedBlock):
        return list(block.body)
    if isinstance(block, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine([small]) for small in block.body]
    return []


def _block(node: Any, statements: Sequence[Statement]) -> Any:
    block = node.body if isinstance(node.body, cst.IndentedBlock) else cst.IndentedBlock([])
    footer = [*block.footer, *getattr(statements, "footer", ())]
    return node.with_changes(body=block.with_changes(body=list(statements), footer=footer))


def with_body(node: S, statements: Sequence[Statement]) -> S:
    """The compound statement with another block."""
    changed: S = _block(node, statements)
    return changed


def comments(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """The comment lines above a statement, with the blank line above them."""
    lines = list(getattr(node, "leading_lines", ()))
    first = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
    return [*lines[:first][:1], *(line for line in lines[first:] if line.comment is not None)]


GONE = "what is below was said of synchronisation that is gone"


def headings(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """The comment lines that head a section, as ``# --- store ---``, with the blank line above them."""
    named = [line for line in lines if line.comment is not None and re.search(r"[-=*#]{3}", line.comment.value)]
    return [*(line for line in lines[:1] if line.comment is None), *named]


def left_over(lines: Sequence[cst.EmptyLine], following: Statement) -> list[cst.EmptyLine]:
    """What stays of the comments above removed statements, by the statement that follows.

    Right below them, they may be its comments too. With a comment of its own, they are not. After a blank line nobody
    can tell: they stay, and are marked.
    """
    own = list(getattr(following, "leading_lines", ()))
    if any(line.comment is not None for line in own):
        return headings(lines)
    first = next((i for i, line in enumerate(lines) if line.comment is not None), None)
    marked = first is None or GONE in getattr(lines[first].comment, "value", "")
    if not own or marked or len(headings(lines[first:])) == len(lines[first:]):
        return list(lines)
    return [*lines[:first], remark(GONE), *lines[first:]]


def footer_of(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """The comment lines below the last statement of a block."""
    block = getattr(node, "body", None)
    lines = block.footer if isinstance(block, cst.IndentedBlock) else ()
    return [line for line in lines if line.comment is not None]


def prepend(node: S, lines: Iterable[cst.EmptyLine]) -> S:
    lines = list(lines)
    own = list(getattr(node, "leading_lines", ()))
    while lines and own and lines[-1].comment is None and own[0].comment is None:
        own = own[1:]  # not two blank lines
    return node.with_changes(leading_lines=[*lines, *own]) if lines else node


def remark(text: str) -> cst.EmptyLine:
    return cst.EmptyLine(comment=cst.Comment(f"# convert: {text}"))


def walk(statements: Iterable[Statement]) -> Iterator[cst.CSTNode]:
    """Every statement, nested ones included, in order."""
    for node in statements:
        yield node
        yield from walk(body_of(node))
        other = getattr(node, "orelse", None)
        if isinstance(other, cst.If):
            yield from walk([other])
        elif isinstance(other, cst.Else):
            yield from walk(body_of(other))


def map_blocks(node: Statement, change: Callable[[list[Statement]], list[Statement]]) -> Statement | None:
    """Apply ``change`` to the blocks of a compound statement; None when nothing is left in any of them."""
    if not isinstance(getattr(node, "body", None), cst.IndentedBlock | cst.SimpleStatementSuite):
        return node
    had = body_of(node)
    inner = change(had)
    other = getattr(node, "orelse", None)
    if isinstance(other, cst.If):
        node = node.with_changes(orelse=map_blocks(other, change))
    elif isinstance(other, cst.Else):
        rest = change(body_of(other))
        node = node.with_changes(orelse=_block(other, rest) if rest else None)
    if not inner and had and getattr(node, "orelse", None) is None:
        return None
    return with_body(node, inner or [statement("pass")])
