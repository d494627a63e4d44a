"""Guards of texts: those of transformers' own classifiers and tokenizers, from tables, lists and single texts."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from tests.helpers.program import outfield
from tests.helpers.texts import LONGEST, TOPICS, folder_of_topics, guard_of_topics, labelled, save_classifier, sentences
from tests.helpers.trap import Trap

import outfield as of
from outfield.guard import ReviewFolder, describe_guard

transformers = pytest.importorskip("transformers")
WORDS = {"vocab_size": 51, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture(scope="module")
def guard():
    return guard_of_topics()


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(folder_of_topics(), tmp_path / "topics")


def reader(folder, **settings):
    return of.Texts(f"hf:{folder}", device="cpu", **settings)


def change(path, **entries):
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


class TestRows:
    @pytest.mark.parametrize(
        "make",
        [
            lambda t: t.BertForSequenceClassification(t.BertConfig(**WORDS, **SIZES, max_position_embeddings=LONGEST)),
            lambda t: t.RobertaForSequenceClassification(t.RobertaConfig(**WORDS, **SIZES, max_position_embeddings=12)),
            lambda t: t.GPT2ForSequenceClassification(
                t.GPT2Config(**WORDS, n_embd=32, n_layer=2, n_head=2, n_positions=16)
            ),
        ],
    )
    def test_they_are_those_of_transformers(self, make, tmp_path):
        torch.manual_seed(0)
        network = make(transformers).eval()
        found = reader(save_classifier(tmp_path, network))
        texts = [*sentences("food", 40), *sentences("animals", 5, length=(30, 40)), "Cat"]
        rows = found.rows(texts)
        assert rows.about["network"].startswith(found.name)
        tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)
        with torch.no_grad():
            each = [tokens(text, truncation=True, max_length=found.longest)["input_ids"] for text in texts]
            wanted = torch.cat([network(input_ids=torch.tensor([ids])).logits for ids in each])
        assert found.longest == (11 if network.config.model_type == "roberta" else LONGEST)
        assert torch.allclose(rows.logits, wanted, atol=1e-5)
        if rows.head_weight is not None:
            assert torch.allclose(rows.features @ rows.head_weight.T + rows.head_bias, wanted, atol=1e-5)
        assert (rows.head_weight is None) == (network.config.model_type == "gpt2")  # whose head has no bias
        assert rows.features.shape == (46, 32)

    def test_transformers_shows_no_bar_of_its_own(self, folder, capfd):
        reader(folder)
        assert capfd.readouterr().err == ""
        assert transformers.utils.logging.is_progress_bar_enabled()

    def test_a_batch_is_what_its_texts_are_alone(self, guard):
        texts = [*sentences("food", 20), *sentences("animals", 20)]
        together, alone = guard.features(texts), [guard.features([text]) for text in texts]
        assert torch.allclose(together.features, torch.cat([one.features for one in alone]), atol=1e-6)
        assert guard(texts).scores == pytest.approx([guard(text).score for text in texts], rel=0.02)

    def test_long_texts_are_cut_and_this_is_said_once(self, folder, caplog):
        found = reader(folder)
        rows = found.rows(["cat " * 100, "cat " * 14])
        found.rows(["cat " * 100])
        assert torch.equal(rows.features[0], rows.features[1])
        assert caplog.text.count("reads 16 tokens of a text at most") == 1


class TestVerdicts:
    def test_topics_it_knows_are_kept_and_others_refused(self, guard):
        assert guard(labelled(200, 7)).is_ood.mean() < 0.12
        assert guard(sentences("food", 200)).is_ood.mean() > 0.9
        one = guard("the car is a bus near the tram")
        assert isinstance(one, of.Verdict)
        assert (one.class_name, one.file) == ("vehicles", None)
        assert str(guard).startswith("Guard(texts of topics, 2 classes: EnergyLogits + KNN + SSD; keeps 0.95 of ID")
        assert repr(guard(["a cat"])).startswith("Verdicts(1 text, ")

    def test_a_list_a_frame_columns_and_a_file_are_the_same(self, guard, tmp_path):
        texts = [*sentences("food", 5), 'say "cat, dog"\nand bird', "1"]
        frame = pd.DataFrame({"id": range(7), "text": texts, "label": "whatever"})
        frame.to_csv(tmp_path / "a.csv", index=False)
        frame.to_parquet(tmp_path / "a.parquet")
        wanted = guard(texts).scores.tolist()
        files = (tmp_path / "a.csv", tmp_path / "a.parquet")
        for given in (np.array(texts), frame, frame["text"], {"text": texts}, *files):
            assert guard(given).scores.tolist() == wanted
        found = [*guard.stream([str(tmp_path / "a.csv"), tmp_path / "no.csv"], on_error="skip")]
        assert [one.score for one in found[:7]] == wanted
        assert found[6].file == f"{tmp_path / 'a.csv'} row 7"
        assert "no.csv" in found[7].error

    @pytest.mark.parametrize(
        ("cell", "words"),
        [
            ("  ", "the text is empty"), (None, "there is no text"), (float("nan"), "there is no text"), (3, "3 is no text"),
            ("a\ud800", "the text holds half a character"),
        ],
    )  # fmt: skip
    def test_what_is_no_text(self, guard, cell, words):
        with pytest.raises(of.InputError, match=f"text 2: {words}"):
            guard(["a cat", cell])
        found = guard(["a cat", cell, "a dog"], on_error="skip")
        assert [one.error for one in found][::2] == [None, None]
        assert words in found[1].error
        assert found[2].score == guard(["a cat", "a dog"])[1].score

    def test_what_it_does_not_look_at(self, guard):
        for given, words in (
            ([], "no text in an empty list"),
            ({"words": ["a"], "more": ["b"]}, "no column 'text' of texts; it has words, more"),
            (np.zeros((2, 3, 3), np.uint8), "the table"),
            (3, "the table is a int"),
        ):
            with pytest.raises(of.InputError, match=words):
                guard(given)


class TestBuild:
    def test_classes_by_name_and_by_number(self, folder):
        known = labelled(5)
        numbers = [TOPICS.index(name) for name in known["label"]]
        found = reader(folder)
        assert found.rows(known).labels.tolist() == numbers
        assert found.rows({**known, "label": numbers}).labels.tolist() == numbers
        assert found.rows({**known, "label": list(map(str, numbers))}).labels.tolist() == numbers
        for wrong, words in ((["food"] * 10, "no class 'food'.*vehicles, animals"), ([2] * 10, "no class '2'")):
            with pytest.raises(of.InputError, match=f"column 'label' cannot be used: the network has {words}"):
                found.rows({**known, "label": wrong})
        with pytest.raises(of.InputError, match="column 'label' has 1 empty cell"):
            found.rows({**known, "label": [None, *known["label"][1:]]})
        with pytest.raises(of.InputError, match="no column 'kind' of classes"):
            of.Guard.build(reader(folder, label="kind"), known)

    def test_a_column_by_another_name(self, folder):
        known = labelled(150)
        renamed = {"said": known["text"], "kind": known["label"], "id": [*range(300)]}
        made = of.Guard.build(reader(folder, label="kind"), renamed, device="cpu")
        assert [one.name for one in made.reader.columns] == ["said"]
        with pytest.raises(of.InputError, match="no column 'said' of texts; it has text, label"):
            made(known)
        with pytest.raises(of.InputError, match="no column 'text' of texts; it has a, b: rename one, or name it"):
            of.Guard.build(reader(folder), {"a": known["text"], "b": known["text"]})

    def test_copies_stay_on_one_side_and_what_is_no_text_is_left_out(self, folder, caplog):
        texts = [text for text in sentences("animals", 150) for _ in range(2)]
        made = of.Guard.build(reader(folder), [*texts, ""], detector="SSD", device="cpu", keep=0.9)
        assert "1 of" in caplog.text
        assert "left out" in caplog.text
        assert made.provenance["labels"] == "predicted"
        assert made.provenance["train"] % 2 == made.provenance["calibrate"] % 2 == 0
        with pytest.raises(of.InputError, match="row 301: the text is empty"):
            of.Guard.build(reader(folder), [*texts, ""], device="cpu", on_error="fail")

    def test_p_values_of_new_texts_are_valid(self, folder):
        made = of.Guard.build(reader(folder), labelled(100, 3), labelled(100, 4), device="cpu", max_train=120)
        assert made.provenance["train"] == 120
        p_values = made(labelled(300, 8)).p_values
        for level in (0.05, 0.1, 0.3):
            assert (p_values <= level).mean() < level + 0.06

    def test_thresholds_of_classes_and_an_accuracy(self, folder):
        made = of.Guard.build(reader(folder), labelled(400), threshold="per class", accuracy=0.9, device="cpu")
        found = made(["the cat and a dog near a bird", *sentences("food", 3)])
        assert all(one.group for one in found)
        assert [one.accept for one in found][1:] == [False] * 3

    def test_settings_of_images_are_refused(self, folder):
        for settings, words in (({"views": "flip"}, "views is 'flip'"), ({"precision": "bfloat16"}, "precision is")):
            with pytest.raises(of.InputError, match=f"{words}.* a guard of texts cannot have"):
                of.Guard.build(reader(folder), labelled(9), **settings)


class TestFile:
    def test_it_holds_network_and_tokenizer(self, guard, tmp_path):
        guard.save(tmp_path / "a.guard")
        again = of.Guard.load(tmp_path / "a.guard", "cpu")
        texts = [*sentences("food", 9), *sentences("animals", 9)]
        assert again(texts).scores.tolist() == guard(texts).scores.tolist()
        assert again.fingerprint == guard.fingerprint
        said = describe_guard(tmp_path / "a.guard")
        assert said["texts"] == "column 'text' of a table; of each 16 tokens at most"
        assert said["classes"] == "vehicles, animals"
        assert "accuracy 100.0 % on held-out texts" in said["built"]
        with pytest.raises(of.InputError, match="leave network out"):
            of.Guard.load(tmp_path / "a.guard", "cpu", network=torch.nn.Identity())

    def test_half_as_many_bits(self, guard, folder, tmp_path):
        made = of.Guard.build(reader(folder), labelled(200), device="cpu", float16=True)
        for name, one in (("half", made), ("whole", guard)):
            one.save(tmp_path / f"{name}.guard")
        sizes = [(tmp_path / f"{name}.guard").stat().st_size for name in ("half", "whole")]
        assert sizes[0] < 0.75 * sizes[1]
        again = of.Guard.load(tmp_path / "half.guard", "cpu")
        assert again(sentences("food", 9)).scores.tolist() == made(sentences("food", 9)).scores.tolist()

    def test_an_update_recalibrates_and_fits_again(self, guard, tmp_path):
        new = guard.updated(sample=labelled(100, 5))
        assert new.threshold.value != guard.threshold.value
        assert new("the cat is a dog").class_name == "animals"
        kept = ReviewFolder(tmp_path / "kept")
        data = labelled(60, 6)
        for text, verdict in zip(data["text"], guard(data), strict=True):
            kept.add({"verdict": verdict.to_dict(), "row": {"text": text}}, None, True)
        for own, name in zip(kept.ids(), data["label"], strict=True):
            kept.review(own, True, name)
        pd.DataFrame(labelled(150, 9)).to_csv(tmp_path / "train.csv", index=False)
        new = guard.updated(tmp_path / "kept", train=str(tmp_path / "train.csv"))
        assert new.provenance["updated"][0]["trained"] > 250
        assert new(sentences("food", 50)).is_ood.mean() > 0.9
        new.save(tmp_path / "new.guard")
        assert of.Guard.load(tmp_path / "new.guard", "cpu")("a cat").score == new("a cat").score


class TestFolder:
    def test_other_networks_are_refused(self, folder):
        with pytest.raises(of.FileFormatError, match=r"no image classifier .* it is one of texts: .*--texts"):
            of.Backbone.open(f"hf:{folder}", device="cpu")
        config = folder / "config.json"
        change(config, architectures=["ViTForImageClassification"])
        with pytest.raises(of.FileFormatError, match=r"no text classifier .* it is one of images: --images"):
            reader(folder)
        change(config, architectures=["DistilBertForMaskedLM"])
        with pytest.raises(of.FileFormatError, match=r"one of them must end with ForSequenceClassification"):
            reader(folder)
        for wrong in ("timm:resnet18", "net.onnx", None):
            with pytest.raises(of.InputError, match="no text classifier; write hf:FOLDER"):
                of.Texts(wrong)

    def test_one_output_is_no_classifier(self, tmp_path):
        config = transformers.BertConfig(**{**WORDS, "num_labels": 1}, **SIZES)
        network = transformers.BertForSequenceClassification(config)
        with pytest.raises(of.FileFormatError, match="which is a regression"):
            reader(save_classifier(tmp_path, network))

    @pytest.mark.parametrize("lost", ["tokenizer.json", "config.json", "model.safetensors"])
    def test_missing_files(self, folder, lost):
        (folder / lost).unlink()
        with pytest.raises(of.StorageError, match=lost):
            reader(folder)

    def test_broken_tokenizers(self, folder):
        tokens = json.loads((folder / "tokenizer.json").read_text())
        ending = json.loads(json.dumps(tokens))
        ending["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [5000]
        tokens["model"]["vocab"] |= {f"word {i}": 100 + i for i in range(20)}
        for content, words in (
            (b"{}", "no tokenizer that tokenizers can read"),
            (b"\xff", r"tokenizer\.json cannot be read as JSON"),
            (json.dumps(tokens).encode(), "its tokenizer has 120 tokens, its network 48; it is another's"),
            (json.dumps(ending).encode(), "its tokenizer has 5,001 tokens, its network 48"),
        ):
            (folder / "tokenizer.json").write_bytes(content)
            with pytest.raises(of.FileFormatError, match=words):
                reader(folder)
        (folder / "tokenizer_config.json").write_bytes(b"[]")
        with pytest.raises(of.FileFormatError, match=r"tokenizer_config\.json does not hold a JSON object"):
            reader(folder)

    def test_pickles_and_code_of_the_folder_are_never_run(self, folder, tmp_path):
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
        (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass M: pass\n")
        change(folder / "config.json", auto_map={"AutoModelForSequenceClassification": "mine.M"})
        assert reader(folder).names == TOPICS
        (folder / "model.safetensors").unlink()
        with pytest.raises(of.StorageError, match=r"there is no model\.safetensors"):
            reader(folder)
        assert not (tmp_path / "ran").exists()


class TestCommands:
    def test_from_a_table_to_verdicts_and_drift(self, folder, tmp_path):
        for name, data in (("train", labelled(200)), ("val", labelled(150, 1)), ("test", labelled(100, 2))):
            pd.DataFrame(data).to_csv(tmp_path / f"{name}.csv", index=False)
        pd.DataFrame({"text": [*sentences("food", 50), " "]}).to_csv(tmp_path / "food.csv", index=False)
        build = ("guard", "build", f"hf:{folder}", "--texts", "train.csv", "-o", "a.guard", "--device", "cpu")
        done = outfield(*build, "--held-out", "val.csv", cwd=tmp_path, code=0)
        assert "accuracy of topics on 300 held-out texts: 100.0 %" in done.said
        assert "now check texts: outfield guard check a.guard NEW.csv" in done.said
        done = outfield("guard", "check", "a.guard", "food.csv", "--out", "v.csv", cwd=tmp_path, code=0)
        assert "51 texts" in done.said
        told = pd.read_csv(tmp_path / "v.csv")
        assert told["file"][1] == "food.csv row 2"
        assert told["error"].tolist()[50] == "the text is empty"
        assert outfield("guard", "check", "a.guard", "food.csv", "--fail-on-ood", cwd=tmp_path).returncode == 10
        done = outfield("score", "a.guard", "food.csv", cwd=tmp_path, code=0)
        assert done.stdout.splitlines()[0].startswith("file,class_index,class_name,score")
        done = outfield("guard", "evaluate", "a.guard", "--id", "test.csv", "--ood", "food.csv", cwd=tmp_path, code=0)
        assert "caught 100.0" in done.stdout
        done = outfield("guard", "show", "a.guard", cwd=tmp_path, code=0)
        assert "column 'text' of a table" in done.stdout
        done = outfield("drift", "v.csv", "--threshold", "a.guard", cwd=tmp_path, code=0)
        assert done.stdout.startswith("50 samples, ")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ((), "say what is usual: --images FOLDER, or, of a text classifier, --texts FILE"),
            (("--texts", "a.csv", "--images", "a"), "one of them"),
            (("--images", "a", "--label", "kind"), "--column and --label are for --texts"),
            (("--texts", "a.csv", "--size", "32"), "are for networks of images"),
            (("--texts", "a.csv", "--column", "said"), "a.csv has no column 'said' of texts; it has text"),
            (("--texts", "no.csv"), "no.csv"),
        ],
    )
    def test_wrong_options(self, folder, tmp_path, options, words):
        (tmp_path / "a.csv").write_text("text\ncat\n")
        done = outfield("guard", "build", f"hf:{folder}", *options, "-o", "a.guard", cwd=tmp_path)
        assert done.returncode in (2, 3)
        assert words in done.said
        assert not (tmp_path / "a.guard").exists()

    def test_half_a_character_in_a_file_and_an_export_are_refused(self, guard, tmp_path):
        guard.save(tmp_path / "my.guard")
        (tmp_path / "half.csv").write_text("text\nthe \ud83d cat\n", encoding="utf-8", errors="surrogatepass")
        done = outfield("guard", "check", "my.guard", "half.csv", cwd=tmp_path, code=11)
        assert "half.csv is not UTF-8 text" in done.said
        done = outfield("export", "my.guard", "-o", "my.onnx", cwd=tmp_path, code=2)
        assert "is a guard of texts, of which no graph can be exported" in done.said
