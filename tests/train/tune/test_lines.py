"""The line at the end of a tuned run says what became of the plan."""

import json
from dataclasses import replace
from types import SimpleNamespace

from slm.train.tune.lines import end, plan
from slm.train.tune.look import Look
from slm.train.tune.rule import Findings, choose


def run(tmp_path, *records, val_fraction=0.0):
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    return SimpleNamespace(
        root=tmp_path,
        train=SimpleNamespace(max_steps=100),
        data=SimpleNamespace(val_fraction=val_fraction, val_files=[]),
        preference=SimpleNamespace(loss_unit="nats per token"),
        facts={"tune": {"passes": 8.0}},
    )


def test_it_names_updates_passes_and_the_best_loss(tmp_path):
    records = [{"step": 1, "loss": 1.5}, {"step": 40, "val_loss": 0.2}, {"step": 50, "val_loss": 0.3}]
    said = end(run(tmp_path, *records))
    assert said == (
        "tuned: 50 of 100 updates, 4.0 epochs of the conversations; loss 1.500 at first, 0.200 nats per token on the "
        "conversations at step 40"
    )
    assert "0.200 nats per token on held-out conversations" in end(run(tmp_path, *records, val_fraction=0.05))


def test_nothing_trained_is_nothing_said(tmp_path):
    assert end(run(tmp_path)) is None
    assert end(run(tmp_path, {"step": 1, "loss": 1.0})) is None


def test_the_plan_names_a_shared_beginning_that_saves_something():
    def said(shared: int) -> str:
        seen = Look(line="", records=40, distinct=40, lengths=(60,) * 40, scored=0.25, shared=shared)
        choice = choose(Findings(conversations=40, lengths=seen.lengths, shared=shared, n_params=10**8, context=2048))
        return plan(choice, seen, max_minutes=None)

    assert "30 tokens at their beginning are the same and computed once in an update" in said(30)
    assert "the same" not in said(4)


def test_the_plan_says_what_copies_and_few_held_out_conversations_do():
    seen = Look(line="", records=600, distinct=6, lengths=(60,) * 6, scored=0.25, held_out=3)
    choice = choose(
        Findings(conversations=6, lengths=seen.lengths, n_params=10**8, context=2048, held_out=seen.held_out)
    )
    said = plan(choice, seen, max_minutes=None, held_out=3, once=True)
    assert "; 6 conversations of 60 tokens" in said
    assert "; 594 copies are left out (data.dedup=none reads them, too)" in said
    assert said.endswith(
        "3 held-out conversations are too few to stop by (20 are enough): the plan is carried out, and the last "
        "checkpoint is taken"
    )
    assert plan(choice, seen, max_minutes=None, held_out=30).endswith("; validations end no run (train.patience=0)")
    stopping = replace(choice, patience=3)
    falls = ", unless the loss in training still falls"
    assert plan(stopping, seen, max_minutes=None, held_out=30).endswith(f"end the run{falls}")
    assert plan(stopping, seen, max_minutes=None, held_out=30, learns=False).endswith("end the run")


def test_the_last_loss_is_named_where_the_last_checkpoint_is_taken(tmp_path):
    records = [{"step": 1, "loss": 1.5}, {"step": 40, "val_loss": 0.2}, {"step": 50, "val_loss": 0.3}]
    taken = {"event": "last_taken", "step": 50, "val_loss": 0.2}
    assert end(run(tmp_path, *records, taken)).endswith("0.300 nats per token on the conversations at step 50")
    later = {"step": 60, "val_loss": 0.25}
    assert end(run(tmp_path, *records, taken, later)).endswith("at step 40")
