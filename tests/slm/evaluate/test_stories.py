"""Stories of a model that has learnt nothing: the same each time, and incoherent; and whose runs are scored."""

import torch

from slm.evaluate.evaluate import coherence_rows
from slm.evaluate.stories import is_of_tales, story_coherence
from slm.model.transformer import LanguageModel
from slm.runs import Run
from tests.helpers import tiny_checkpoint


def test_the_score_is_repeatable_and_leaves_the_random_state_alone():
    model = LanguageModel(tiny_checkpoint.config())
    tiny_checkpoint.randomize(model)
    before = torch.get_rng_state()
    found = [story_coherence(model, tiny_checkpoint.tokenizer(), 3) for _ in range(2)]
    assert found[0] == found[1] < 0.5
    assert torch.equal(torch.get_rng_state(), before)


def test_only_runs_on_the_tales_are_scored(tmp_path, capsys):
    run = Run(tiny_checkpoint.run(tmp_path / "run"))
    assert not is_of_tales(run)
    assert coherence_rows(run, 2) == []
    assert "left out" in capsys.readouterr().out
    (run.root / "config.yaml").write_text("data: {kind: tales}\n")
    (row,) = coherence_rows(run, 2)
    assert row["definition"] == "coherence/2"
    assert 0 <= row["coherence"] < 0.5
    assert f"{row['coherence']:.3f} (0 to 1" in capsys.readouterr().out
