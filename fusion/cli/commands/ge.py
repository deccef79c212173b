"""``kvfuse ge``: looks at, checks and runs GE IR files."""

from __future__ import annotations

import argparse

HELP = "show, validate or run a GE IR file (X.air)"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("action", choices=("show", "validate", "run"))
    parser.add_argument("file", metavar="X.air")
    parser.add_argument("--form", choices=("text", "pbtxt"), default="text", help="of show (default text)")
    parser.add_argument("--inputs", metavar="F.npz", help="of run: NAME -> array, or recorded CASE/in/NAME")
    parser.add_argument("--outputs", metavar="F.npz", help="of run: file to write, names as in the inputs")


def run(args: argparse.Namespace) -> int:
    """Runs the chosen action."""
    actions = {"show": _show, "validate": _validate, "run": _run}
    return actions[args.action](args)


def _show(args: argparse.Namespace) -> int:
    from fusion import cli
    from ir_ops import ge

    print(ge.show(ge.read(args.file), args.form), end="")
    return cli.DONE


def _validate(args: argparse.Namespace) -> int:
    """Exit code 3 when a rule has an error to report: errors one by one, remarks by rule."""
    from fusion import cli
    from ir_ops import ge
    from ir_ops.ge.validator import errors, grouped

    findings = ge.validate(args.file)
    bad = errors(findings)
    for line in (*bad, *grouped(finding for finding in findings if finding.severity != "error")):
        print(line)
    print(f"{args.file}: {f'{len(bad)} error(s)' if bad else 'good'}, {len(findings) - len(bad)} remark(s)")
    return cli.FAILED if bad else cli.DONE


def _run(args: argparse.Namespace) -> int:
    """Evaluates the graph in numpy: a reference, not fast."""
    from fusion import cli, model_io
    from fusion.cli import console
    from fusion.verification import read_feeds
    from ir_ops import ge
    from ir_ops.errors import BadUsage

    if args.inputs is None or args.outputs is None:
        raise BadUsage("ge run needs --inputs F.npz and --outputs F.npz")
    console.check_paths(file=args.file, inputs=args.inputs, outputs=args.outputs)
    model_io.check_target(args.outputs)
    model = ge.read(args.file)
    results = {feed.name: ge.run(model, feed.inputs) for feed, _ in read_feeds(args.inputs)}
    console.write_outputs(args.outputs, results)
    return cli.DONE
