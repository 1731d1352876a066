"""YAML as other people write it: loaded safely, within bounds, with its problems as text.

PyYAML stays in here. Only the safe loader is used; aliases are refused where the content is walked, for a few lines of
them can stand for more nodes than memory holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MAX_DEPTH = 50


class YamlInvalid(Exception):
    """The text cannot be used."""


def load_mapping(data: bytes, *, aliases: bool = False) -> dict[str, Any]:
    """The mapping that a document consists of. Raises: YamlInvalid."""
    value = _load(data, aliases=aliases)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise YamlInvalid("not a mapping of names")
    return value


def load_list(data: bytes) -> list[Any]:
    """The list that a document consists of. Raises: YamlInvalid."""
    value = _load(data, aliases=False)
    if not isinstance(value, list):
        raise YamlInvalid("not a list")
    return value


def _load(data: bytes, *, aliases: bool) -> Any:
    import yaml

    try:
        text = data.decode()
        _check(yaml.parse(text, yaml.SafeLoader), aliases=aliases)
        return yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise YamlInvalid(f"not UTF-8 (byte {error.start})") from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlInvalid(" ".join(str(error).split())) from None


def _check(events: Iterable[Any], *, aliases: bool) -> None:
    """Raises: YamlInvalid. Stops at the first event that is too much: the parser reads no further than that."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise YamlInvalid(f"nested more than {_MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent) and not aliases:
            raise YamlInvalid("aliases (*name) are not supported")


def dump(value: dict[str, Any]) -> bytes:
    """A mapping in the order of its keys; texts of several lines as blocks."""
    import yaml

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_representer(str, represent)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)).encode()
