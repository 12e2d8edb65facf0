"""Text from a torch checkpoint, one token at a time: for samples while training, not for serving."""

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
    cache = model.new_cache()
    new: list[int] = []
    ids_1T = torch.tensor([prompt[-model.config.seq_len + 1 :]])
    room = min(max_tokens, model.config.seq_len - ids_1T.shape[1])
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
