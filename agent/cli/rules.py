"""``agent rules [ID]``: what is known to go silently wrong before a launch, and where that is known from."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.core.servers.lint import Rule


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser("rules", help="what is known to go silently wrong before a launch; one rule in full")
    command.add_argument("id", nargs="?", default="", metavar="ID", help="explain this rule (SGL001)")
    command.add_argument("--kind", default="", help="only those for this kind of server")
    command.add_argument("--json", action="store_true", help="one JSON document on standard output")
    command.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    from agent.core.servers.lint import FILES, every_rule, rules
    from agent.errors import AgentError

    if args.kind and args.kind not in FILES:
        raise AgentError(f"{args.kind} is not a kind of server", f"known: {', '.join(sorted(FILES))}", "E_KIND")
    if args.id:
        return explain(args.id, as_json=args.json)
    found = rules(args.kind) if args.kind else every_rule()
    if args.json:
        print(json.dumps([rule.model_dump(mode="json") for rule in found]))
        return 0
    for rule in found:
        print(f"{rule.id}  {rule.level:<7}  {rule.happens}")
    print(f"\n{len(found)} rules; `agent rules {found[0].id}` explains one")
    return 0


def explain(name: str, *, as_json: bool = False) -> int:
    """Print one rule in full; AgentError when there is none of that name."""
    from agent.core.servers.lint import every_rule
    from agent.core.wording import did_you_mean
    from agent.errors import AgentError

    known = {rule.id: rule for rule in every_rule()}
    rule = known.get(name.upper())
    if rule is None:
        raise AgentError(f"there is no rule {name}", did_you_mean(name.upper(), known), "E_RULE")
    if as_json:
        print(json.dumps(rule.model_dump(mode="json")))
        return 0
    for line in lines(rule):
        print(line)
    return 0


def lines(rule: Rule) -> list[str]:
    """Return one rule for people."""
    out = [f"{rule.id} ({rule.level}): {rule.happens}", f"  remedy    {rule.remedy}"]
    if rule.finding:
        out.append(f"  class     {rule.finding}, if it were found out after the launch")
    if rule.engine:
        words = {"refuses": "refuses to start", "accepts": "takes it without a word"}
        out.append(f"  engine    {words.get(rule.engine) or 'changes ' + ', '.join(rule.sets or ('the flag',))}")
    out += [f"  versions  {rule.versions}", f"  source    {rule.source}", "  applies when"]
    out += [f"    {part.strip()}" for part in rule.when.split("&&")]
    out.append(f"  to set it aside, write into the playbook: # agent: allow {rule.id} because …")
    return out
