"""The tables of the pages on tables and text are computed: ranks, means and places of a page."""

import numpy as np
import pytest
from benchmarks.tables import divided, left_out, means, page, ranks, summary
from benchmarks.text import PROTOCOLS, fresh, protocol

import outfield as of


def figures(auroc, fpr95):
    return {"auroc": auroc, "fpr95": fpr95, "seconds": 0.5}


RESULT = {
    "one": {
        "rows": [100, 100, 10],
        "columns": 3,
        "seeds": [{"A": figures(0.9, 0.3), "B": figures(0.8, 0.3)}, {"A": figures(0.7, 0.1), "B": figures(0.8, 0.1)}],
    },
    "small": None,
    "two": {"rows": [200, 200, 20], "columns": 4, "seeds": [{"A": figures(0.6, 0.9), "B": figures(0.5, 0.95)}] * 2},
}


def test_means_and_ranks():
    cells = means(RESULT)
    assert cells["one"]["A"]["auroc"] == pytest.approx(0.8)
    assert list(cells) == ["one", "two"]
    assert ranks(cells, "auroc") == {"A": 1.25, "B": 1.75}  # equal figures share their ranks
    assert ranks(cells, "fpr95") == {"A": 1.25, "B": 1.75}
    assert "| A | 1.25 | 1.25 | 70.0 | 55.0 | 0.50 |" in summary(RESULT)
    assert left_out(RESULT) == "Measured: 2 sets. Left out, with fewer than 80 rows to fit: small."


def test_a_page_is_filled_where_it_says_so():
    text = "a\n<!-- summary -->\nold\n<!-- end -->\nb\n<!-- left out -->\n<!-- end -->\n<!-- sets -->\n<!-- end -->\n"
    filled = page(RESULT, text)
    assert "old" not in filled
    assert filled.startswith("a\n<!-- summary -->\n|  | mean rank")
    assert "| one (100 × 3) | 20 / 80 | 20 / 80 |" in filled
    assert page(RESULT, filled) == filled
    with pytest.raises(SystemExit, match="0 places for 'sets'"):
        page(RESULT, "<!-- summary -->\n<!-- end -->\n")


def test_sets_are_divided_by_the_seed(tmp_path):
    rows, anomaly = np.arange(400.0)[:, None], np.arange(400) % 10 == 0
    np.savez(tmp_path / "1_set.npz", X=rows, y=anomaly)
    train, test, unusual = divided(tmp_path / "1_set.npz", 0)
    assert len(train) == len(test) == 180
    assert set(unusual[:, 0]) == set(range(0, 400, 10))
    assert not {*train[:, 0]} & {*test[:, 0]}
    np.savez(tmp_path / "2_set.npz", X=rows[:150], y=anomaly[:150])
    assert divided(tmp_path / "2_set.npz", 0) is None


def test_no_text_is_in_two_sets():
    found = {
        "train": [("a", "x"), ("b", "y"), ("A ", "x"), ("d", "pay")],
        "val": [("c", "x"), ("b", "y")],
        "test": [("e", "y"), ("f", "pay"), ("a", "x")],
        "domains": {"banking": ["pay"], "credit_cards": [], "other": ["x", "y"]},
        "out_of_scope": ["g", "e", "g"],
        "wikipedia": ["h", "g"],
        "films": ["i"],
    }
    sets = protocol(found, PROTOCOLS["eight-domains"])
    assert sets["train"] == (["a", "b"], ["x", "y"])
    assert sets["val"] == (["c"], ["x"])
    assert sets["test"] == (["e"], ["y"])
    assert [sets[name][0] for name in ("bank", "out_of_scope", "wikipedia", "films")] == [["f"], ["g"], ["h"], ["i"]]
    assert "bank" not in protocol(found, PROTOCOLS["clinc150"])
    assert fresh(["a", "A  ", "b"], {"b"}) == ["a"]


def test_every_detector_has_a_row():
    from benchmarks.text import LEFT_OUT, detectors

    assert {type(one).__name__ for one in detectors().values()} == set(of.DETECTORS) - set(LEFT_OUT)
