"""32 varied prompts: chats, plain continuations, code, several scripts, emoji, shared prefixes, short and long."""

from __future__ import annotations

STORY = (
    "The lighthouse keeper counted the ships each evening and wrote their names in a book with a green cover. "
    "On clear nights there were many, on foggy ones none at all, and he never guessed. "
)
MANUAL = (
    "You are the assistant of a small bicycle workshop. Answer in one or two short sentences. "
    "The workshop opens at nine, closes at six, and rests on Sundays. A tyre costs twelve euros, a chain thirty. "
)

CHATS = [
    "What is the capital of France?",
    "Count from 1 to 20.",
    "Write a haiku about rain.",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue? Explain it to a child.",
    "List three uses of salt.",
    "What is 17 + 25?",
    "Give me a recipe for pancakes.",
    MANUAL + "How much is a tyre?",
    MANUAL + "Are you open on Sunday?",
    MANUAL + "I need a chain and two tyres. What do I pay?",
    MANUAL + "When do you close?",
]
COMPLETIONS = [
    "Once upon a time",
    "The quick brown fox",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\nx = np.",
    "SELECT name FROM users WHERE",
    "Water boils at",
    "东京是",
    "Привет, как",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "Ich habe gestern einen",
    "La vie est",
    "🙂🙃👩‍👩‍👧 emoji mean",
    "x = [1, 2, 3, 4, 5, 6, 7, 8",
    "A",
    "    \n\n\t  tabs and spaces",
    STORY,
    STORY * 2 + "One morning",
    STORY * 6,
    "0 1 1 2 3 5 8 13 21",
]


def prompt_ids(tokenizer) -> list[list[int]]:  # type: ignore[no-untyped-def]
    """Token ids of all 32 prompts; chats through the model's template."""
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for text in CHATS
    ]
    return chats + [tokenizer(text)["input_ids"] for text in COMPLETIONS]
