"""Text from a torch checkpoint, one token at a time: for samples while training, not for serving.

Shape suffixes: B texts, T positions, V vocabulary.
"""

from collections.abc import Collection, Sequence

import torch

from slm.model.transformer import LanguageModel


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: list[int],
    *,
    max_tokens: int,
    temperature: float = 0.8,
    top_k: int = 50,
    stop_ids: tuple[int, ...] = (),
    seed: int = 0,
) -> list[int]:
    """New token ids after ``prompt`` (at least one id), until a stop id, ``max_tokens`` or the model's context.

    ``temperature=0`` takes the likeliest token. The random state is the call's own: sampling while training
    leaves the training's untouched.
    """
    if not prompt:
        raise ValueError("generation needs a token to start from, and the prompt has none")
    generator = torch.Generator().manual_seed(seed)
    new: list[int] = []
    ids_1T = torch.tensor([prompt[-model.config.seq_len + 1 :]])
    room = min(max_tokens, model.config.seq_len - ids_1T.shape[1])
    cache = model.new_cache(ids_1T.shape[1] + room)
    while len(new) < room:
        logits_V = model(ids_1T, cache)[0, -1]
        if temperature <= 0:
            chosen = int(logits_V.argmax())
        else:
            top = logits_V.topk(min(top_k, logits_V.numel()))
            probabilities = (top.values / temperature).softmax(-1)
            chosen = int(top.indices[torch.multinomial(probabilities, 1, generator=generator)])
        if chosen in stop_ids:
            break
        new.append(chosen)
        ids_1T = torch.tensor([[chosen]])
    return new


@torch.no_grad()
def generate_many(
    model: LanguageModel,
    start_id: int,
    count: int,
    *,
    max_tokens: int,
    temperature: float = 0.8,
    top_k: int = 50,
    stop_id: int | None = None,
    seed: int = 0,
) -> list[list[int]]:
    """``count`` texts after ``start_id``, written at once, each up to its ``stop_id``, ``max_tokens`` or the context.

    ``temperature`` must be above 0: the texts differ by chance only. The random state is the call's own.
    """
    generator = torch.Generator().manual_seed(seed)
    cache = model.new_cache(1 + min(max_tokens, model.config.seq_len - 1))
    ids_B1 = torch.full((count, 1), start_id)
    chosen: list[torch.Tensor] = []
    open_B = torch.ones(count, dtype=torch.bool)
    while len(chosen) < min(max_tokens, model.config.seq_len - 1) and open_B.any():
        top = model(ids_B1, cache)[:, -1].topk(min(top_k, model.config.vocab_size))
        picked_B1 = torch.multinomial((top.values / temperature).softmax(-1), 1, generator=generator)
        ids_B1 = top.indices.gather(1, picked_B1)
        chosen.append(ids_B1[:, 0])
        if stop_id is not None:
            open_B &= ids_B1[:, 0] != stop_id
    texts = torch.stack(chosen, 1).tolist() if chosen else [[] for _ in range(count)]
    return [text[: text.index(stop_id)] if stop_id in text else text for text in texts]


@torch.no_grad()
def continue_many(
    model: LanguageModel, prompts: Sequence[Sequence[int]], most: Sequence[int], *, stop_ids: Collection[int] = ()
) -> list[list[int]]:
    """The likeliest continuation of each prompt, all computed together: new ids until one of ``stop_ids``, as many as
    ``most`` says for that prompt, or the model's context.

    A stop id is the last of its list. Prompts need at least one id each, and must fit the context. Shorter ones are
    padded in front: no position sees the padding, and rotary positions count by their differences.
    """
    assert all(prompts), "generation needs a token to start from"
    room = [min(limit, model.config.seq_len - len(ids)) for limit, ids in zip(most, prompts, strict=True)]
    new: list[list[int]] = [[] for _ in prompts]
    rows = [number for number, limit in enumerate(room) if limit > 0]
    longest = max((len(prompts[row]) for row in rows), default=0)
    ids_BT = torch.tensor([[0] * (longest - len(prompts[row])) + list(prompts[row]) for row in rows])
    padded_B1 = torch.tensor([[longest - len(prompts[row])] for row in rows], dtype=torch.int32)
    starts_BT = None  # plain causal attention, without a mask of T times T
    if padded := bool(padded_B1.any()):
        # The padding sees itself: a position that sees nothing would be no number.
        starts_BT = torch.where(torch.arange(longest) < padded_B1, 0, padded_B1).to(torch.int32)
    cache = model.new_cache(longest + max(room, default=0))
    while rows:
        last_BD = model.hidden_states(ids_BT, cache, starts_BT)[:, -1]
        chosen = model.logits(last_BD).argmax(-1).tolist()
        for row, token in zip(rows, chosen, strict=True):
            new[row].append(token)
        on = [at for at, row in enumerate(rows) if chosen[at] not in stop_ids and len(new[row]) < room[row]]
        if len(on) < len(rows):
            kept = torch.tensor(on, dtype=torch.int64)
            for each in cache:
                each.keep(kept)
            padded_B1 = padded_B1[kept]
        rows = [rows[at] for at in on]
        ids_BT, starts_BT = torch.tensor([[chosen[at]] for at in on]), padded_B1 if padded else None
    return new
