"""Small tokenizers in which most characters are several tokens, and a tiny chat model that speaks one of them."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<unk>", "<s>", "</s>"]
EOS_ID = 2
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
_SAMPLE = ["the answer is the answer", "hello hello world", "stop and stop again"]


def byte_level_backend() -> Tokenizer:
    """GPT-2's scheme: a token for every byte, a few merges, three special tokens, one added token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SAMPLE, trainer)
    tokenizer.add_tokens([AddedToken("[é added]", normalized=False)])
    return tokenizer


def byte_fallback_backend() -> Tokenizer:
    """SentencePiece's scheme as Llama 2 uses it: `▁` for spaces, `<0xE4>` for bytes that are no token."""
    pieces = SPECIALS + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", *"abcdefghijklmnopqrstuvwxyz", "é"]
    merges = [("▁", "a"), ("t", "h"), ("th", "e"), ("▁", "the")]
    pieces += ["".join(pair) for pair in merges]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def save_tokenizer(folder: Path) -> Path:
    """The byte-level tokenizer as a model directory without weights."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_backend(), unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def save_tiny_chat_model(folder: Path, *, context_len: int = 4096, seed: int = 7) -> Path:
    """A random Llama of 60 thousand parameters with this tokenizer. The same weights for the same seed."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=byte_level_backend().get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context_len,
        bos_token_id=1,
        eos_token_id=EOS_ID,
    )
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return save_tokenizer(folder)
