"""The JSON Schema of the playbook language, for editors: the models' own, with the guards that exist put in."""

from __future__ import annotations

from typing import Any

from .ladder import guard_adapter, guard_classes
from .playbook import Playbook

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def playbook_schema() -> dict[str, Any]:
    """Return the schema of a whole playbook."""
    schema: dict[str, Any] = _with_guards(Playbook.model_json_schema(by_alias=True))
    guards = guard_adapter().json_schema(by_alias=True, ref_template="#/$defs/{model}")
    # Guards have fields of their own names; they come under a prefix so that none hides a part of the language.
    prefix = "Guard-"
    members = _renamed({key: value for key, value in guards.items() if key != "$defs"}, prefix)
    schema["$defs"]["Guard"] = {
        "title": "Guard",
        "anyOf": [{"enum": sorted(guard_classes())}, members],
    }
    for name, part in guards.get("$defs", {}).items():
        made = _with_units(_renamed(part, prefix))
        if "guard" in made.get("properties", {}):
            made["required"] = sorted({"guard", *made.get("required", ())})
        schema["$defs"][prefix + name] = made
    return {"$schema": DRAFT, **schema}


def _with_units(node: Any) -> Any:
    """Let numbers of guards be words as well: durations and shares are written with their units."""
    if isinstance(node, dict):
        units = {"type": ["number", "string"]} if node.get("type") == "number" else {}
        return {key: _with_units(value) for key, value in node.items()} | units
    return [_with_units(item) for item in node] if isinstance(node, list) else node


def _renamed(node: Any, prefix: str) -> Any:
    """Return a schema with its references led to the prefixed names."""
    if isinstance(node, dict):
        return {key: _renamed(_led(key, value, prefix), prefix) for key, value in node.items()}
    return [_renamed(item, prefix) for item in node] if isinstance(node, list) else node


def _led(key: str, value: Any, prefix: str) -> Any:
    if key == "$ref" and isinstance(value, str):
        return value.replace("#/$defs/", f"#/$defs/{prefix}")
    if key == "mapping" and isinstance(value, dict):
        return {name: str(target).replace("#/$defs/", f"#/$defs/{prefix}") for name, target in value.items()}
    return value


def _with_guards(node: Any) -> Any:
    """Put the union of guards wherever the models say only ``Guard``."""
    if isinstance(node, dict):
        if node.get("title") == "Guard":
            return {"$ref": "#/$defs/Guard", **{key: node[key] for key in ("description",) if key in node}}
        return {key: _with_guards(value) for key, value in node.items()}
    return [_with_guards(item) for item in node] if isinstance(node, list) else node
