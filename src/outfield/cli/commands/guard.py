"""outfield guard build, rows, check, evaluate, update and show."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from outfield.cli import options as opt
from outfield.cli.app import FOUND, UNREAD, Device, command, group, log, print_grid, print_groups, print_table
from outfield.cli.options import File, Share, Text
from outfield.errors import InputError, StorageError
from outfield.extras import check_installed
from outfield.percent import counted, in_percent, percent
from outfield.progress import bar

if TYPE_CHECKING:
    from outfield.detectors import Detector
    from outfield.guard import Guard, Verdicts

GUARDS = (".guard", ".safetensors")
VERDICTS = (".csv", ".parquet", ".json", ".jsonl")
guards = group(
    "guard", "Verdicts on images, texts or rows of a table: build a guard of what is usual, check what comes later."
)

AGuard = Annotated[Path, Argument(help="A guard, as outfield guard build or rows wrote it.")]
Out = Annotated[Path, Option("--out", "-o", help="File of the guard (.guard).")]
DetectorName = Annotated[Text, Option(help="Detector to use. Default: Auto.")]
PerClass = Annotated[bool, Option("--per-class", help="A threshold for each class that the network predicts.")]
Accuracy = Annotated[Share, Option(help="Accept only answers of which this share is right, such as 0.99.")]
Seed = Annotated[int, Option(min=0, help="Seed of the choice of held-out samples.")]


@command(
    "outfield guard build cifar10.safetensors --images photos/train --held-out photos/val -o my.guard",
    "outfield guard build timm:resnet18@weights.safetensors --images photos/train -o my.guard --keep 0.99 --views flip",
    "outfield guard build torchvision:fasterrcnn_resnet50_fpn@cells.safetensors --images VOC --names red,white -o my.guard",
    "outfield guard build net.onnx --size 224 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --images photos/train -o my.guard",
    "outfield guard build hf:topics --texts train.csv --held-out val.csv -o topics.guard",
    of=guards,
)
def build(
    network: opt.Network,
    output: Out,
    images: Annotated[
        Text,
        Option(
            "--images",
            help="ID images, a folder (sub-folders are classes) or .npz. Of an object detector annotated: a folder or list of "
            "Pascal VOC, or COCO's .json.",
        ),
    ] = None,
    texts: Annotated[Text, Option(help="ID texts of a text classifier (hf:FOLDER), a table: .csv or .parquet.")] = None,
    held_out: Annotated[
        Text, Option(help="ID images or texts new to the network. Default: a fifth of the others, of few a third.")
    ] = None,
    column: Annotated[Text, Option(help="Column of --texts. Default: text, or the only one that holds texts.")] = None,
    label: Annotated[Text, Option(help="Column of the classes of --texts. Default: label, if it is there.")] = None,
    keep: opt.Keep = 0.95,
    per_class: PerClass = False,
    accuracy: Accuracy = None,
    views: opt.AutoViews = None,
    detector: DetectorName = None,
    setting: opt.Settings = None,
    names: Annotated[Text, Option(help="Of an object detector: names of labels 1, 2, …, with commas between.")] = None,
    size: opt.Size = None,
    crop: opt.Crop = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    interpolation: opt.Interpolation = None,
    trust: opt.Trust = False,
    float16: Annotated[bool, Option("--float16", "--half", help="Round numbers: the file is half as large.")] = False,
    max_train: opt.MaxTrain = 10_000,
    seed: Seed = 0,
    on_error: opt.OnError = "skip",
    workers: opt.Decoders = None,
    device: Device = "auto",
) -> None:
    """Build a guard of images or texts: network, preprocessing, detector and threshold in one file."""
    inputs = [
        ("the backbone", network),
        ("the images", images),
        ("the texts", texts),
        ("the held-out images", held_out),
    ]
    opt.check_places(inputs, [opt.Output("--out", output, GUARDS)])

    from outfield.backbone import Backbone
    from outfield.guard import Guard, ImagePlan, Texts

    settings = opt.preprocessing_settings(size, crop, mean, std, interpolation)
    chosen: dict[str, Any] = {
        "detector": _detector(detector, setting), "keep": keep, "threshold": "per class" if per_class else "global",
        "accuracy": accuracy, "views": views, "float16": float16, "max_train": max_train, "seed": seed, "device": device,
        "workers": workers, "on_error": on_error,
    }  # fmt: skip
    began = time.monotonic()
    usual = texts if images is None else images
    if usual is None or (images is not None and texts is not None):
        raise InputError("say what is usual: --images FOLDER, or, of a text classifier, --texts FILE; one of them")
    if texts is not None and (settings or names is not None or trust):
        what = "--size, --crop, --mean, --std, --interpolation, --names and --trust"
        raise InputError(f"{what} are for networks of images")
    if texts is None and (column is not None or label is not None):
        raise InputError("--column and --label are for --texts; the folders of --images name the classes of images")
    if texts is not None:
        with bar("opening the network"):
            classifier = Texts(network, column=column, label=label, device=device)
        made = Guard.build(classifier, usual, held_out, **chosen)
    elif network.startswith("torchvision:") and "rcnn" in network.partition("@")[0]:
        made = _guard_of_boxes(network, usual, held_out, names, settings, chosen)
    elif names is not None:
        raise InputError("--names is for object detectors; the folders of --images name the classes of other networks")
    else:
        plan = ImagePlan(**chosen)  # which checks them before the network is loaded
        source = plan.images(usual)
        held = None if held_out is None else plan.images(held_out)
        with bar("opening the network"):
            backbone = Backbone.open(network, device, trust=trust, **settings)
        log.info("%s", backbone)
        made = plan.build(backbone, source, held)
    with bar("writing the guard"):
        made.save(output)
    _tell(made, output, began)


def _guard_of_boxes(
    network: str, images: str, held_out: str | None, names: str | None, given: dict[str, Any], chosen: dict[str, Any]
) -> Guard:
    """A guard of an object detector; ``given`` is what was said of preprocessing, under the names of a network's."""
    from outfield.guard import Boxes, Guard
    from outfield.modes import resolve_device

    settings = {{"mean": "image_mean", "std": "image_std"}.get(name, name): value for name, value in given.items()}
    if (size := settings.pop("size", None)) is not None:
        sides = (size,) if isinstance(size, int) else size
        settings |= {"min_size": min(sides), "max_size": max(sides)}
    if names is None:
        raise InputError("say what the labels 1, 2, … of the object detector are: --names red,white")
    with bar("opening the network"):
        boxes = Boxes(network, names.split(","), device=resolve_device(chosen["device"]), **settings)
    with bar("looking for boxes"):
        return Guard.build(boxes, images, held_out, **chosen)


@command(
    "outfield guard rows customers.csv --label segment -o customers.guard",
    "outfield guard rows train.parquet --columns age,income,town --missing median --keep 0.99 -o my.guard",
    "outfield guard rows features.safetensors --held-out val.safetensors -o my.guard",
    of=guards,
)
def rows(
    rows: Annotated[str, Argument(help="ID rows: a table (.csv, .parquet), or a file of features.")],
    output: Out,
    held_out: Annotated[Text, Option(help="More ID rows, of the same kind. Default: a fifth, of few a third.")] = None,
    label: Annotated[Text, Option(help="Column of a table that holds the class of each row.")] = None,
    columns: Annotated[Text, Option(help="Columns of a table to use, with commas between. Default: all.")] = None,
    missing: Annotated[str, Option(help="Missing cells: refuse or fill them.", metavar="refuse|median")] = "refuse",
    categories: Annotated[Text, Option(help="Columns whose numbers are names, with commas between.")] = None,
    ignore_extra: Annotated[bool, Option("--ignore-extra", help="Ignore other columns of later tables.")] = False,
    network_features: Annotated[
        bool, Option("--network-features", help="Features of a network: their direction counts, not their length.")
    ] = False,
    keep: opt.Keep = 0.95,
    per_class: PerClass = False,
    accuracy: Accuracy = None,
    detector: DetectorName = None,
    setting: opt.Settings = None,
    max_train: opt.MaxTrain = 10_000,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Build a guard of the rows of a table, or of features: no network and no image is needed."""
    opt.check_places([("the rows", rows), ("the held-out rows", held_out)], [opt.Output("--out", output, GUARDS)])

    from outfield.guard import Guard

    began = time.monotonic()
    with bar("building the guard"):
        made = Guard.build_rows(
            rows, held_out, label=label, columns=None if columns is None else columns.split(","), missing=missing,
            categories=() if categories is None else categories.split(","), ignore_extra=ignore_extra,
            network_features=network_features or None, detector=_detector(detector, setting), keep=keep, accuracy=accuracy,
            threshold="per class" if per_class else "global", seed=seed, max_train=max_train, device=device,
        )  # fmt: skip
        made.save(output)
    _tell(made, output, began)


def _detector(name: str | None, setting: list[str] | None) -> Detector | str | None:
    """The detector that is named, made where it has settings; None for Auto."""
    named = None if name == "auto" else name
    if not setting:
        return named
    if named is None:
        raise InputError("--set is a setting of a detector; name it with --detector")

    from outfield.config import construct_from_text
    from outfield.detectors import DETECTORS

    made: Detector = construct_from_text(DETECTORS[named], opt.setting_texts(setting))
    return made


def _tell(made: Guard, output: Path, began: float) -> None:
    from outfield.guard import describe_guard

    low, high = made.threshold.kept_interval()
    unit, some = made.reader.scored, "PHOTO.jpg" if made.takes == "images" else "NEW.csv"
    log.info("%s", made)
    log.info("it accepts %s to %s of new ID %s (90 %% interval)", percent(low, 1), percent(high, 1), unit)
    told = describe_guard(output)
    for name, words in (("per class", "%s"), ("accepts", "accepts %s"), ("quality", "how good it is: %s")):
        if told.get(name):
            log.info(words, told[name])
    log.info("built in %.1f s → %s", time.monotonic() - began, output)
    for aim, words in (
        (f"now check {unit}:", f"guard check {output} {some}"),
        ("see how good it is:", f"guard evaluate {output} --id TEST --ood OTHERS"),
        ("answer over HTTP:", f"serve {output}"),
    ):
        log.info("%-20s outfield %s", aim, words)


@command(
    "outfield guard check my.guard photo.jpg",
    "outfield guard check my.guard photos/ more/*.png --out verdicts.csv --fail-on-ood",
    "outfield guard check customers.guard new.csv --why",
    of=guards,
)
def check(
    guard: AGuard,
    images: Annotated[
        list[str], Argument(help="Images, folders or .npz; of rows or texts tables; of rows also features.")
    ],
    json_out: Annotated[bool, Option("--json", help="Print a JSON list instead of a table.")] = False,
    json_lines: Annotated[bool, Option("--jsonl", help="Print a JSON object a line, as they are ready.")] = False,
    output: Annotated[File, Option("--out", "-o", help="File of verdicts: .csv, .parquet, .json or .jsonl.")] = None,
    fail_on_ood: Annotated[
        bool, Option("--fail-on-ood", help=f"Exit with {FOUND} if an image is OOD, {UNREAD} if one is unreadable.")
    ] = False,
    why: Annotated[bool, Option("--why", help="Guard of a table: name the columns that make a row OOD.")] = False,
    fdr: opt.Fdr = None,
    ignore_extra: Annotated[bool, Option("--ignore-extra", help="Guard of a table: ignore unknown columns.")] = False,
    on_error: opt.OnError = "skip",
    workers: opt.Decoders = None,
    device: Device = "auto",
) -> None:
    """Check images: for each its class, score, p-value, verdict, and the member of the detector that triggered it."""
    if json_out and json_lines:
        raise InputError("--json and --jsonl both say what is printed; give one of them")
    if json_lines and fdr is not None:
        raise InputError("--fdr decides when all verdicts are there, --jsonl prints each at once; take --json")
    inputs: list[opt.Input] = [("the guard", guard), *(("an image", image) for image in images)]
    opt.check_places(inputs, [opt.Output("--out", output, VERDICTS)])
    _check_images(images, on_error)

    from outfield.guard import Guard, TableReader, Verdicts, as_json, as_json_lines, write_verdicts
    from outfield.modes import resolve_device

    resolve_device(device)
    model = Guard.load(guard, device)
    if not isinstance(model.reader, TableReader):
        if why:
            what = "features, whose columns mean nothing by themselves" if model.takes == "features" else model.takes
            raise InputError(
                f"--why tells the columns of a table, but {guard} looks at {what}; leave it out (triggered_by says which "
                "member of the detector counts most), or give a guard of a table: outfield guard rows TABLE -o my.guard"
            )
        if ignore_extra:
            what = f"--ignore-extra is for guards of tables, but {guard} looks at {model.takes}"
            raise InputError(f"{what}; leave it out")
    elif ignore_extra:
        model.reader.table = replace(model.reader.table, others=True)
    found, what = [], model.reader.unit
    lost: SystemExit | StorageError | None = None
    stream = model.stream(images, on_error=on_error, workers=workers, why=why)
    with bar(f"checking {what}", unit=what) as advance:
        for verdict in stream:
            found.append(verdict)
            advance(len(found))
            if json_lines and lost is None:
                try:
                    sys.stdout.write(as_json_lines([verdict]))
                    sys.stdout.flush()
                except (SystemExit, StorageError) as error:  # nobody reads any more, but a file may be wanted
                    if output is None:
                        raise
                    lost = error
    verdicts = Verdicts(found, what)
    if fdr is not None:
        rows = [row for one in verdicts for row in one.rows]
        verdicts = Verdicts(rows, model.reader.scored).with_discoveries(fdr)
    if output is not None:
        write_verdicts(output, verdicts)
    if json_out:
        sys.stdout.write(as_json(verdicts))
    elif not json_lines and output is None:
        _print(verdicts)
    _sum_up(verdicts, output)
    if fdr is not None:
        log.info("%s", opt.fdr_in_words(fdr))
    if lost is not None:
        raise lost
    if fail_on_ood and verdicts.is_ood.any():
        raise typer.Exit(FOUND)
    unread = len(verdicts.failed)
    if unread and (fail_on_ood or unread == len(verdicts)):
        raise typer.Exit(UNREAD)  # what could not be checked has not passed


@command(
    "outfield guard evaluate my.guard --id photos/test --ood others/ --ood drawings=more/ -o evaluation.png",
    of=guards,
)
def evaluate(
    guard: AGuard,
    id_data: Annotated[str, Option("--id", help="ID images or rows new to the guard; of boxes also annotated ones.")],
    ood: Annotated[list[str], Option(help="OOD images or rows, PATH or NAME=PATH; any number of times.")],
    output: Annotated[File, Option("--out", "-o", help="Figure: scores, risk and coverage (.png).")] = None,
    on_error: opt.OnError = "skip",
    workers: opt.Decoders = None,
    device: Device = "auto",
) -> None:
    """Tell how good a guard is: the share of ID images kept and of OOD images caught, FPR95 and AUROC, with 95 % intervals.

    Of a guard with an accuracy also the share of answers accepted, and of these, where ID data is labelled, the share right.
    """
    sets = opt.named_sets("--ood", ood)
    places = [("the ID data", id_data), *((f"the OOD set {name}", path) for name, path in sets.items())]
    opt.check_places([("the guard", guard), *places], [opt.Output("--out", output, (".png",))])
    if output is not None:
        check_installed("report", "matplotlib")
    _check_images([path for _, path in places], "fail")

    import numpy as np

    from outfield.benchmark import intervals, risk_curves
    from outfield.guard import Boxes, BoxPlan, Guard, Verdicts, are_annotated, true_classes
    from outfield.report import Table
    from outfield.scores import auroc, fpr95, share_interval

    model = Guard.load(guard, device)
    unit, found, judged = model.reader.unit, [], []
    for what, path in places:
        with bar(f"checking {what}", unit=unit):
            if isinstance(model.reader, Boxes) and path == id_data and are_annotated(Path(path)):
                verdicts = model.judge(BoxPlan(on_error=on_error).rows(model.reader, path))
            else:
                verdicts = Verdicts([*model.stream([path], on_error=on_error, workers=workers)], unit)
        if (failed := len(verdicts.failed)) == len(verdicts):
            raise StorageError(f"no {unit[:-1]} of {path} could be read: {verdicts[0].error}")
        if failed:
            log.warning("%s of %s %s of %s could not be read", f"{failed:,}", f"{len(verdicts):,}", unit, path)
        judged.append(Verdicts([row for one in verdicts for row in one.rows if row.score is not None], unit))
        found.append(judged[-1].scores)
    test = found[0]
    rows: list[list[str]] = []
    for name, verdicts, scores in zip(["ID", *sets], judged, found, strict=True):
        right = int((verdicts.is_ood == bool(rows)).sum())
        share = _with_interval(right / len(scores), share_interval(right, len(scores)))
        told = [name, f"{len(scores):,}", f"{'caught' if rows else 'kept'} {share}"]
        both = zip((fpr95, auroc), intervals(test, scores) if rows else (), strict=False)
        rows.append([*told, *([_with_interval(one(test, scores), ends) for one, ends in both] or ["", ""])])
    title = f"{guard.name}, {100 * model.threshold.keep:.4g} % of ID to be kept; 95 % intervals"
    header = ["set", model.reader.scored, "at the guard's threshold (%)", "FPR95 ↓ (%)", "AUROC ↑ (%)"]
    print_table(Table(title, header, rows))
    accepts = model.decision is not None and model.decision.acceptance is not None
    truths = true_classes(model, id_data, len(test)) if accepts or output is not None else []
    if accepts:
        _tell_accepted(truths, dict(zip(["ID", *sets], judged, strict=True)))
    if output is not None:
        from outfield.report import write_evaluation

        answers, others, risks = [one.class_index for one in judged[0]], dict(zip(sets, found[1:], strict=True)), {}
        if None not in (*truths, *answers):
            how = "p_right" if accepts else "score"
            ranks = [np.array([bool(v.is_ood) - (v.p_right or 0) for v in own]) for own in judged] if accepts else found
            wrong, unknown = np.array(answers) != np.array(truths), dict(zip(sets, ranks[1:], strict=True))
            risks = {f"answers by {how}": risk_curves(ranks[0], wrong, unknown)}
        write_evaluation(output, f"Scores of {guard.name}", test, others, model.threshold, risks)
        log.info("→ %s", output)


def _tell_accepted(truths: Sequence[int | None], judged: dict[str, Verdicts]) -> None:
    """Which share of the answers on each set is accepted, and of those on ID data how many are right, where that is known."""
    from outfield.scores import share_interval

    shares = {name: sum(bool(one.accept) for one in those) / len(those) for name, those in judged.items()}
    log.info("accepted answers: %s", ", ".join(f"{name} {percent(share)}" for name, share in shares.items()))
    pairs = [(one.class_index, true) for one, true in zip(judged["ID"], truths, strict=True) if one.accept]
    if known := [index == true for index, true in pairs if true is not None]:
        interval = _with_interval(sum(known) / len(known), share_interval(sum(known), len(known)))
        log.info("of %s accepted answers on ID data %s %% are right", f"{len(known):,}", interval)


def _with_interval(share: float, ends: tuple[float, float]) -> str:
    low, high = map(in_percent, ends)
    return f"{in_percent(share)} ({low} – {high})"


@command(
    "outfield guard update my.guard --accept kept/my -o new.guard",
    "outfield guard update my.guard --sample photos/june -o new.guard",
    "outfield guard update my.guard --accept kept/my --refit photos/train -o new.guard",
    of=guards,
)
def update(
    guard: Annotated[Path, Argument(help="A guard; it stays as it is.")],
    output: Out,
    accept: Annotated[
        File, Option(help="Folder of outfield serve --keep that people reviewed, or known images or rows.")
    ] = None,
    sample: Annotated[
        Text, Option(help="Known images or rows of which none was chosen: they set the threshold.")
    ] = None,
    refit: Annotated[Text, Option(help="Training images or rows: fit again on these and the reviewed ones.")] = None,
    until: Annotated[Text, Option(help="Time up to which kept inputs count (UTC).", metavar="2026-03-01T18:00")] = None,
    workers: opt.Decoders = None,
    device: Device = "auto",
) -> None:
    """Make a new version of a guard from what people said of its inputs, and tell what that changes."""
    inputs: list[opt.Input] = [("the guard", guard), ("--accept", accept), ("--sample", sample), ("--refit", refit)]
    opt.check_places(inputs, [opt.Output("--out", output, GUARDS)])

    from outfield.guard import Guard
    from outfield.report import Table

    old = Guard.load(guard, device)
    with bar("updating the guard"):
        new = old.updated(accept, sample=sample, train=refit, until=until, workers=workers)
        new.save(output)
    change, unit = new.provenance["updated"][-1], new.reader.unit
    shares = [
        [name, f"{n:,}", *(f"{count:,} ({percent(count / n)})" for count in (before, after)), f"{lost:,}", f"{won:,}"]
        for name, n, before, after, lost, won in change["changes"]
    ]
    header = [unit, "", "accepted before", "accepted after", "refused now", "accepted now"]
    print_table(Table(f"{guard.name} → {output.name}", header, shares))
    for model, name in ((old, "before"), (new, "after")):
        count = len(model.threshold.reference)
        log.info("threshold %s: %.6g, chosen on %s %s", name, model.threshold.value, f"{count:,}", unit)
    low, high = new.threshold.kept_interval()
    log.info("90 %% interval of the share of such ID %s that it accepts: %.3f to %.3f", unit, low, high)
    if refit is None:
        n, before, after = change["held_out"]
        log.info("of the earlier held-out %s it accepts %s (before: %s)", unit, percent(after / n), percent(before / n))
    else:
        copies = f", without {change['copies']:,} that are in the sample, too" if change["copies"] else ""
        what = f"fitted again on {change['trained']:,} {unit}{copies}"
        log.info("%s; scores are not comparable with those before", what)
        log.info("on the old held-out %s: outfield guard evaluate %s --id HELD_OUT --ood OTHERS", unit, output)
    log.info("→ %s; %s is as it was, and nothing else changes until you deploy the new one", output, guard)


@command("outfield guard show my.guard", of=guards)
def show(guard: AGuard) -> None:
    """Tell what is in a guard, without building its network."""
    from outfield.guard import describe_guard

    print_groups(f"{guard}", {"A guard": list(describe_guard(guard).items())})


def _check_images(images: list[str], on_error: str) -> None:
    """Before the guard is loaded: whether images that are to be an error where they cannot be read are there at all."""
    from outfield.config import require_choice
    from outfield.images import ON_ERROR

    require_choice("on_error", on_error, ON_ERROR)
    for image in images if on_error == "fail" else []:
        if not os.path.lexists(image):
            raise StorageError(f"cannot read {image}: there is no such file or folder")


def _print(verdicts: Verdicts) -> None:
    told = {"group": "threshold of", "p_right": "p right", "why": "why", "confidence": "confidence"}
    told |= {name: name for name in ("left", "top", "right", "bottom")}
    judged = [row for one in verdicts for row in one.rows]
    more = [name for name in told if any(name in one.more for one in judged)]
    rows: list[list[str | tuple[str, str]]] = []
    for one in judged:
        if one.error is not None or one.score is None:
            what = ("error", "red") if one.error else ("no box", "")
            rows.append([one.file or "", "", "", "", what, one.error or ""])
            continue
        verdict = (one.word, "bold red" if one.is_ood else "yellow" if one.why_not else "green")
        others = [None if one.is_ood and name == "p_right" else one.more.get(name) for name in more]
        said = [f"{text:.3f}" if isinstance(text, float) else text or "" for text in (one.triggered_by, *others)]
        rows.append([one.file or "", one.label, f"{one.score:.4g}", f"{one.p_value:.4f}", verdict, *said])
    print_grid(
        ["file", "class", "score", "p-value", "verdict", "triggered by", *(told[name] for name in more)],
        rows,
        numbers=(2, 3),
    )


def _sum_up(verdicts: Verdicts, output: Path | None) -> None:
    if failed := len(verdicts.failed):
        first = verdicts.failed[0]
        all_of = "" if len(verdicts) == 1 else f"{failed:,} of {len(verdicts):,} {verdicts.what} could not be read; "
        named = str(first.error).startswith(str(first.file))
        log.warning("%s%s%s", all_of, "" if named else f"{first.file}: ", first.error)
    where = "" if output is None else f" → {output}"
    if len(verdicts) > 1 or output is not None:
        checked = counted(len(verdicts) - failed, verdicts.what[:-1])
        if any(one.accept is not None for one in verdicts):
            checked += f", {sum(bool(one.accept) for one in verdicts):,} accepted"
        log.info("%s, %s OOD%s", checked, f"{int(verdicts.is_ood.sum()):,}", where)
