"""Sentences of two topics and of others, and a small text classifier of transformers that tells the two apart."""

from __future__ import annotations

import atexit
import functools
import tempfile
from pathlib import Path

import numpy as np
import torch

import outfield as of

WORDS = {
    "animals": ["cat", "dog", "horse", "cow", "bird", "fish", "sheep", "goat", "mouse", "owl"],
    "vehicles": ["car", "bus", "truck", "train", "bike", "tram", "boat", "plane", "van", "taxi"],
    "food": ["bread", "soup", "rice", "cheese", "apple", "honey", "salt", "pepper", "butter", "milk"],
}
TOPICS = ("vehicles", "animals")
"""In the order of the classifier's classes, which is not that of the alphabet."""
REST = ["the", "a", "is", "near", "and", "see", "we", "some", "old", "new", "very", "big", "small", "today"]
LONGEST = 16


def sentences(topic, count, seed=0, length=(4, 12)):
    """Sentences of which every other word is of the topic."""
    rng = np.random.default_rng([seed, *topic.encode()])
    return [
        " ".join(str(rng.choice(WORDS[topic] if place % 2 else REST)) for place in range(int(rng.integers(*length))))
        for _ in range(count)
    ]


def labelled(count, seed=0):
    """Sentences of both topics, as columns."""
    texts = {topic: sentences(topic, count, seed) for topic in TOPICS}
    return {
        "text": [one for own in texts.values() for one in own],
        "label": [topic for topic in TOPICS for _ in range(count)],
    }


def save_classifier(folder: Path, network=None, **settings) -> Path:
    """A trained DistilBERT of two layers, or another network, with a tokenizer of words, as transformers saves them."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *REST, *(word for own in WORDS.values() for word in own)]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    names = {name: f"[{name[:3].upper()}]" for name in ("pad_token", "unk_token", "cls_token", "sep_token")}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LONGEST, **names)
    if network is None:
        network = _trained(transformers, fast, len(words), settings)
    network.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def _trained(transformers, fast, words, settings):
    torch.manual_seed(0)
    names = {"id2label": dict(enumerate(TOPICS)), "label2id": {name: place for place, name in enumerate(TOPICS)}}
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": LONGEST}
    config = transformers.DistilBertConfig(vocab_size=words, **{**sizes, **names, **settings})
    network = transformers.DistilBertForSequenceClassification(config).train()
    data = labelled(200, seed=1)
    tokens = fast(data["text"], padding=True, truncation=True, return_tensors="pt")
    labels = torch.tensor([TOPICS.index(name) for name in data["label"]])
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    for step in range(25):
        part = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[:64]
        loss = network(
            input_ids=tokens["input_ids"][part], attention_mask=tokens["attention_mask"][part], labels=labels[part]
        ).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


@functools.cache
def folder_of_topics() -> Path:
    """The classifier's folder, made once by a process."""
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    return save_classifier(Path(made.name) / "topics")


@functools.cache
def guard_of_topics():
    """A guard of it."""
    return of.Guard.build(of.Texts(f"hf:{folder_of_topics()}", device="cpu"), labelled(200), device="cpu")
