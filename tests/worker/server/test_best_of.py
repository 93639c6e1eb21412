"""best_of: more answers are made than told, and the likeliest are told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from tests.helpers.fake_scheduler import ready_message
from tests.helpers.openai_errors import check_error
from tests.helpers.replica_app import serving
from worker.ipc.messages import GenerateRequest
from worker.server.sampling import SamplingDefaults
from worker.server.service import ModelFiles
from worker.server.tokenizer import Tokenizer

TEXT = "/v1/completions"
# A token's log-probability is -id / 8 (tests.helpers.fake_scheduler), so the mean of the second answer is the best one,
# though its sum is not.
ANSWERS = ((90, 2), (20, 21, 22, 23, 24, 2), (40, 2), (60, 2))


def in_turn() -> object:
    """Gives one sequence after the other."""
    answers = cycle(ANSWERS)

    def script(request: GenerateRequest) -> Sequence[int]:
        return next(answers)

    return script


async def test_the_likeliest_on_average_are_told_best_first(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, in_turn()) as app:  # type: ignore[arg-type]
        answer = (await app.post(TEXT, prompt=["hi", "ho"], n=2, best_of=4, max_tokens=9)).json()
        told = [(choice["index"], choice["text"], choice["logprobs"]) for choice in answer["choices"]]
        best = [tokenizer.decode(ANSWERS[i][:-1]) for i in (1, 2)]
        assert told == [(i, text, None) for i, text in enumerate(best * 2)]
        counts = answer["usage"]
        prompts = sum(len(tokenizer.encode(prompt)) for prompt in ("hi", "ho"))
        assert counts["prompt_tokens"] == prompts
        assert counts["completion_tokens"] == 2 * sum(map(len, ANSWERS))  # those that nobody sees too
        assert app.service.num_live == 0


async def test_with_log_probabilities_and_echo(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, in_turn()) as app:  # type: ignore[arg-type]
        fields = {"prompt": "hi", "best_of": 4, "max_tokens": 9, "echo": True}
        [choice] = (await app.post(TEXT, **fields, logprobs=0)).json()["choices"]
        assert choice["text"] == "hi" + tokenizer.decode(ANSWERS[1][:-1])
        assert choice["logprobs"]["token_logprobs"][-6:] == [-id_ / 8 for id_ in ANSWERS[1]]
        bare = (await app.post(TEXT, **fields)).json()["choices"][0]
        assert (bare["text"], bare["logprobs"]) == (choice["text"], None)


async def test_as_many_as_are_told_can_be_streamed(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        assert (await app.events(TEXT, prompt="hi", n=2, best_of=2))[-1] == "[DONE]"
        check_error(await app.post(TEXT, prompt="hi", n=2, best_of=3, stream=True), 400, "best_of")


async def test_a_simulated_device_cannot_choose(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, opened=False) as app:
        app.service.open(ready_message(has_logits=False), ModelFiles(tokenizer, SamplingDefaults()))
        check_error(await app.post(TEXT, prompt="hi", best_of=2), 400, "best_of")
