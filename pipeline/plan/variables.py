"""Variables of a plan, such as `release: cbp-{{ year }}`: values take their place before anything else is read of it.

They are replaced in the data that YAML gives, so a value never changes a plan's structure, and before the digest: what
is resolved, reserved and published holds no variable. They stand where a release is named, never where its noise, its
cells or its limits are stated: a plan has one guarantee, whatever the values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pipeline.base.errors import PlanError, in_a_line
from pipeline.base.names import hint
from pipeline.plan.messages import KeyPath, Mistake, lines_of, missing, shape_mistakes
from pipeline.plan.plan_schema import VariableSpec
from pipeline.plan.plan_text import PlanText
from pipeline.plan.values import VARIABLE_NAME, Spec, VariableName, matches

PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}", re.DOTALL)
VALUE = r"(?!.*\.\.)[A-Za-z0-9._-]{1,100}"  # never a step to another folder, nor anything that YAML or HTML would read
PLACES = (
    "release, supersedes, dataset.name, dataset.path, domain.vintage and texts "
    "(title, about, contact, the unit of a query)"
)
DEEPEST, MOST_VALUES = 50, 1_000_000
DATASET_NAME, VINTAGE = ("dataset", "name"), ("domain", "vintage")


class _Declared(Spec):
    variables: dict[VariableName, VariableSpec] = Field(default={})


@dataclass(frozen=True)
class _Text:
    """A text of a plan with variables in it; `is_key`: it is the last key of `path` itself."""

    path: KeyPath
    text: str
    names: tuple[str, ...]
    is_key: bool = False

    def filled(self, given: Mapping[str, str]) -> str | int:
        """Return the text with values in place of its variables; a year as a number."""
        text = PLACEHOLDER.sub(lambda found: given[found[1]], self.text)
        return int(text) if self.path[:-1] == VINTAGE and text.isascii() and text.isdigit() else text

    @property
    def may_vary(self) -> bool:
        """Whether variables may stand there."""
        match self.path:
            case _ if self.is_key:
                return False
            case ("release" | "supersedes" | "title" | "about" | "contact",):
                return True
            case ("dataset", "name" | "path") | ("domain", "vintage", _):
                return True
            case ("queries", _, "title" | "about" | "unit"):
                return True
        return False


def filled(text: PlanText, path: Path, given: Mapping[str, str]) -> PlanText:
    """Return a plan's text with the values `given` in place of its variables, and without their declaration.

    A plan without variables is returned as it is. `path` names it in messages.

    Raises:
        PlanError: With a line for each variable that is declared wrongly, not declared, without a value, without a
            place, in a place where none may stand; each value that is not its pattern's; and each name that is not the
            plan's.
    """
    if "{{" not in text.source and "variables" not in text.data and not given:
        return text
    try:
        declared = _Declared.model_validate({"variables": text.data.get("variables", {})}).variables
    except ValidationError as error:
        raise PlanError(*lines_of(shape_mistakes(error.errors(include_url=False), _Declared), text, path)) from None
    data = {key: value for key, value in text.data.items() if key != "variables"}
    texts = list(_texts(data, path))
    mistakes = [mistake for each in texts for mistake in _misplaced(each, declared)]
    used = {name for each in texts for name in each.names}
    for name, variable in declared.items():
        if rule := _value_rule(name, variable, given.get(name), name in used):
            mistakes.append(Mistake(("variables", name), rule))
    if any(each.path == DATASET_NAME for each in texts) and _at(data, "family") is None:
        why = ": a dataset whose name has a variable belongs to one, over which losses add up whatever its value"
        mistakes.append(missing(("dataset", "family"), why))
    unknown = [f"{path}: --set {in_a_line(name)}: {_unknown(name, declared)}" for name in given if name not in declared]
    if mistakes or unknown:
        raise PlanError(*unknown, *lines_of(mistakes, text, path))
    for each in texts:
        data = _replaced(data, each.path, each.filled(given))
    return replace(text, data=data)


def _at(data: Mapping[str, Any], key: str) -> Any:
    dataset = data.get("dataset")
    return dataset.get(key) if isinstance(dataset, Mapping) else None


def _texts(data: Mapping[str, Any], path: Path) -> Iterator[_Text]:
    """Yield every text with variables in plain data, keys of mappings too.

    Aliases of YAML can make data that are endless, or all but: PlanError where they are deeper or larger than a plan.
    """
    waiting: list[tuple[KeyPath, Any]] = [((), data)]
    seen = 0
    while waiting:
        at, value = waiting.pop()
        seen += 1
        if len(at) > DEEPEST or seen > MOST_VALUES:
            raise PlanError(f"{path}: nested too deeply, or with too many values, for a plan with variables")
        if isinstance(value, str):
            if names := PLACEHOLDER.findall(value):
                yield _Text(at, value, tuple(names))
        elif isinstance(value, Mapping):
            for key, each in value.items():
                if names := PLACEHOLDER.findall(key):
                    yield _Text((*at, key), key, tuple(names), is_key=True)
                waiting.append(((*at, key), each))
        elif isinstance(value, list):
            waiting += [((*at, i), each) for i, each in enumerate(value)]


def _misplaced(text: _Text, declared: Mapping[str, VariableSpec]) -> Iterator[Mistake]:
    if not text.may_vary:
        yield Mistake(text.path, f"no variable may stand here, only in {PLACES}: write the value itself")
        return
    for name in dict.fromkeys(text.names):
        if not re.fullmatch(VARIABLE_NAME, name):
            shown = in_a_line(f"{{{{ {name} }}}}")
            yield Mistake(text.path, f"{shown}: write the name of a variable alone; there are no expressions")
        elif name not in declared:
            yield Mistake(text.path, f"{{{{ {name} }}}}: {_unknown(name, declared)}")


def _unknown(name: str, declared: Mapping[str, VariableSpec]) -> str:
    return f"unknown variable{hint(name, declared, 'variable')}" if declared else "the plan declares no variables"


def _value_rule(name: str, variable: VariableSpec, value: Any, used: bool) -> str | None:
    """Return the rule that a declared variable or its value breaks, in words; None for none."""
    said = f"({variable.about.rstrip('.')}; pattern {variable.pattern})"
    if not used:
        return f"stands nowhere in the plan: write {{{{ {name} }}}} where its value belongs, or leave it out"
    if value is None:
        return f"has no value: give it by --set {name}=VALUE {said}"
    if not isinstance(value, str):
        return "the value must be text; put it in quotes"
    if not re.fullmatch(VALUE, value):
        return f"the value {in_a_line(value)!r} must be 1 to 100 of A-Z a-z 0-9 . _ - without .."
    if not matches(variable.pattern, value):
        return f"the value {value!r} does not match {said}"
    return None


def _replaced(data: Any, path: KeyPath, value: Any) -> Any:
    """Return plain data with another value at `path`; what lies elsewhere is shared, not copied."""
    if not path:
        return value
    step, *rest = path
    parts = dict(data) if isinstance(data, Mapping) else dict(enumerate(data))
    parts[step] = _replaced(parts[step], tuple(rest), value)
    return parts if isinstance(data, Mapping) else list(parts.values())
