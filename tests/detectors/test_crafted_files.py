"""A detector's file with right digests and wrong content is refused, by one kind of error, whatever is wrong in it."""

import copy
import inspect

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.detectors import LearnedEnergy
from outfield.files import Record, read_record, write_record

NAMES = list(of.DETECTORS)
every = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Header and tensors of a file of each detector."""
    folder = tmp_path_factory.mktemp("written")
    found = {}
    for name in NAMES:
        quick(name).fit(make_set()).save(folder / f"{name}.safetensors")
        found[name] = read_record(folder / f"{name}.safetensors", "detector")
    return found


@pytest.fixture
def refused(written, tmp_path):
    """Whether a file with other content is refused."""

    def check(name, change_header=None, change_tensors=None, said=None):
        header, tensors = copy.deepcopy(written[name])
        for change, what in ((change_header, header), (change_tensors, tensors)):
            if change is not None:
                change(what)
        write_record(tmp_path / "d.safetensors", "detector", Record(header, tensors))
        with pytest.raises(of.FileFormatError, match=said):
            of.load(tmp_path / "d.safetensors")

    return check


@every
def test_as_it_was_written_it_loads(name, written, tmp_path):
    write_record(tmp_path / "d.safetensors", "detector", Record(*written[name]))
    assert torch.equal(
        of.load(tmp_path / "d.safetensors").score(make_set(seed=1)), quick(name).fit(make_set()).score(make_set(seed=1))
    )


def spoiled(value):
    """The same tensor with something wrong in it."""
    first = (0,) * value.ndim
    yield "a column less", value[..., :-1].contiguous()
    yield "a dimension more", value[None]
    yield "flat", value.reshape(-1)[None, None]
    yield "empty", value[:0]
    yield "scalar", value[first]
    yield "complex", value.to(torch.complex64)
    yield "truth values", value != 0
    if value.is_floating_point():
        for number in (torch.nan, torch.inf, -torch.inf):
            other = value.clone()
            other[first] = number
            yield str(number), other
        yield "whole numbers", value.round().to(torch.int64)
    else:
        yield "floats", value.double()
        yield "fewer bits", value.to(torch.int16)


@every
def test_every_tensor(name, written, refused):
    for tensor, value in written[name][1].items():
        refused(name, change_tensors=lambda it: it.pop(tensor))
        for kind, wrong in spoiled(value):
            try:
                refused(name, change_tensors=lambda it: it.update({tensor: wrong}))
            except pytest.fail.Exception:
                pytest.fail(f"{tensor} was taken, though it is {kind}")


@every
def test_a_tensor_too_many(name, refused):
    refused(name, change_tensors=lambda it: it.update(more=torch.zeros(2)), said="more")


@every
@pytest.mark.parametrize("entry", ["detector", "settings", "width", "notes"])
def test_every_entry_of_the_header(name, entry, refused):
    refused(name, lambda it: it.pop(entry))
    for wrong in ("6", 6.0, True, [], [1], {"a": 1}, 0, -1, 10**30, "\ud800"):
        # Notes are for people: what is not read cannot be wrong.
        if entry != "notes" or wrong != {"a": 1} or issubclass(of.DETECTORS[name], LearnedEnergy):
            refused(name, lambda it: it.update({entry: wrong}))


@every
def test_the_width(name, written, refused):
    if written[name][1]:
        refused(name, lambda it: it.update(width=7))
        refused(name, lambda it: it.update(width=10**15))
        refused(name, lambda it: it.update(width=None))


BAD_SETTINGS = [None, "", "x", [], [[]], {}, {"type": "Nonsense"}, {"type": 3}, {"type": "Langevin", "steps": -1}, -1]
BAD_SETTINGS += [True, 1e400, float("nan"), 10**400, "9" * 5000]


@every
def test_every_setting(name, refused):
    for setting, parameter in inspect.signature(of.DETECTORS[name]).parameters.items():
        for wrong in BAD_SETTINGS:
            if wrong is None and parameter.default is None:
                continue
            refused(name, lambda it: it["settings"].update({setting: wrong}))
    refused(name, lambda it: it["settings"].update(colour="red"), said="no setting colour")


@every
def test_another_detector_s_name(name, written, refused):
    for other in ("Nonsense", "Detector", "LearnedEnergy", "detectors", "", "../KNN"):
        refused(name, lambda it: it.update(detector=other), said="there is no detector")
    for other in NAMES:
        if other != name and set(written[other][1]) != set(written[name][1]):
            refused(name, lambda it: it.update(detector=other))


@pytest.mark.parametrize("name", ["EBM", "EnergyCorrected"])
class TestLearned:
    @pytest.mark.parametrize("wrong", ["cube", "auto", 3, None, [], {}])
    def test_projections(self, name, wrong, refused):
        refused(name, lambda it: it["notes"].update(projection=wrong), said="projection")

    def test_missing_notes(self, name, refused):
        for note in ("history", "projection"):
            refused(name, lambda it: it["notes"].pop(note), said=note)


@pytest.mark.parametrize("name", ["SSD", "GaussianMixture", "EnergyCorrected"])
@pytest.mark.parametrize("factor", [0, -1])
def test_eigenvalues_are_above_0(name, factor, refused):
    key = "prior.eigenvalues" if name == "EnergyCorrected" else "eigenvalues"
    refused(name, change_tensors=lambda it: it.update({key: factor * it[key]}), said="eigenvalues")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("HEAT", "scales"), ("NECO", "scale"), ("CombOOD", "scale"), ("OpenMax", "scales"), ("OpenMax", "shapes")],
)
def test_scales_are_above_0(name, tensor, refused):
    for factor in (0, -1):
        said = f"{tensor} has entries that are not above 0"
        refused(name, change_tensors=lambda it: it.update({tensor: factor * it[tensor]}), said=said)


class TestHalf:
    @every
    def test_files_of_half_the_precision_load(self, name, tmp_path):
        train, test = make_set(), make_set(seed=1)
        detector = quick(name).fit(train)
        detector.save(tmp_path / "half.safetensors", float16=True)
        _, tensors = read_record(tmp_path / "half.safetensors", "detector")
        whole = detector._state()
        for tensor, value in tensors.items():
            bits = {torch.float32: torch.float16, torch.float64: torch.float32}
            assert value.dtype == bits.get(whole[tensor].dtype, whole[tensor].dtype)
            assert torch.equal(value, whole[tensor].to(value.dtype))
        small = of.load(tmp_path / "half.safetensors")
        scores, rounded = detector.score(test), small.score(test)
        assert float((scores - rounded).abs().max()) <= 1e-2 * float(scores.abs().max())
        assert {name: value.dtype for name, value in small._state().items()} == {
            name: value.dtype for name, value in whole.items()
        }

    def test_numbers_that_do_not_fit_are_refused_and_nothing_is_written(self, tmp_path):
        detector = quick("EBM").fit(make_set())
        with torch.no_grad():
            next(detector.model_.network.parameters())[0, 0] = 1e5
        detector.save(tmp_path / "whole.safetensors")
        with pytest.raises(of.InputError, match=r"cannot be saved in half precision: network\.0\.weight"):
            detector.save(tmp_path / "half.safetensors", float16=True)
        assert [path.name for path in tmp_path.iterdir()] == ["whole.safetensors"]


def test_features_of_one_column_are_kept(tmp_path):
    data = of.FeatureSet(torch.rand(20, 1), labels=torch.arange(20) % 2)
    for name in ("SSD", "KNN"):
        detector = quick(name).fit(data)
        detector.save(tmp_path / "d.safetensors")
        assert torch.equal(of.load(tmp_path / "d.safetensors").score(data), detector.score(data))


def test_a_mixture_whose_eigenvalues_are_equal_is_kept(tmp_path):
    data = of.FeatureSet(torch.ones(20, 3), labels=torch.arange(20) % 2)
    detector = of.SSD().fit(data)
    assert not detector.mixture_.parameters_.eigenvalues.diff().any()
    detector.save(tmp_path / "d.safetensors")
    assert torch.equal(of.load(tmp_path / "d.safetensors").score(data), detector.score(data))
