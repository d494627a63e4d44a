"""Records made up by hand: a small run, and one that found exactly what the paper prints."""

from outfield.benchmark import AVERAGE, PROTOCOLS, BenchmarkRun, Protocol, Record, check_claims, paper

SMALL = Protocol("shapes", near=("a", "b"), mid=("c",), far=("d",))
C10, C100 = PROTOCOLS["cifar10"], PROTOCOLS["cifar100"]


def record(protocol, detector, ood, fpr95, auroc, backbone="net", seed=None):
    return Record(backbone, detector, seed, ood, protocol.level_of(ood), fpr95, auroc, 0.5, 0.5, 0.5, 100, 50)


def records_of(protocol, detector, figures, backbone="net", seed=None):
    """One record for each OOD set from {level or set: (FPR95, AUROC) in percent}."""
    found = {ood: figures.get(ood, figures.get(protocol.level_of(ood))) for ood in protocol.ood}
    return [
        record(protocol, detector, ood, f / 100, a / 100, backbone, seed) for ood, (f, a) in found.items() if f >= 0
    ]


def as_the_paper(protocol):
    """A run that found exactly what the paper's detailed table prints, from two seeds where detectors are learned."""
    found = []
    for detector, row in paper.BY_SET[protocol.id].items():
        figures = {ood: tuple(cell) for ood, cell in row.items() if ood != AVERAGE}
        for seed in (0, 1) if detector in ("EBM", "EnergyCorrected") else (None,):
            found += records_of(protocol, detector, figures, seed=seed)
    return found


def small_run(**more):
    found = []
    for backbone, shift in {"one": 0.0, "two": 0.02}.items():
        for ood, x in {"a": 0.5, "b": 0.4, "c": 0.3, "d": 0.2}.items():
            found.append(record(SMALL, "KNN", ood, x + shift, 1 - x, backbone))
            for seed in (0, 1):
                found.append(
                    record(SMALL, "EnergyCorrected", ood, x + shift + 0.01 * seed, 0.9 - x / 2, backbone, seed)
                )
    return BenchmarkRun(SMALL, found, accuracies={"one": 0.945, "two": 0.95}, **more)


def verdicts(protocol, found):
    return {claim.name: claim.verdict for claim in check_claims(found, protocol)}
