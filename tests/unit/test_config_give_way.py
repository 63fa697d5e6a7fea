"""What the command line leaves without meaning in the file gives way and is told; the rest is kept or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_train.config.give_way import COMMAND_LINE, DEFAULT, give_way
from attnres_train.config.keys import all_keys
from attnres_train.config.load import load, load_checked
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.errors import Problem, Unused
from attnres_train.optim.schedule import learning_rate
from tests.unit.config_files import SMALL, flags, refusal, write
from tests.unit.test_cli import as_json, run

QUICKSTART = Path(__file__).parents[2] / "configs/quickstart.toml"


def with_lines(section: str, *lines: str) -> str:
    """The small file with lines in a section; a key that it has already has its line replaced."""
    text = "".join(
        line + "\n" for line in SMALL.splitlines() if line.split(" =")[0] not in {w.split(" =")[0] for w in lines}
    )
    more = "".join(f"{line}\n" for line in lines)
    head = f"[{section}]\n"
    return text.replace(head, head + more) if head in text else f"{text}\n{head}{more}"


CASES = [
    # section, lines of the file, flags, key that gives way, its value then, words
    ("residual", ["block_size = 2"], ["--residual.mode=standard"], "residual.block_size", None, "no blocks to size"),
    ("residual", ["block_size = 2"], ["--residual.mode=full"], "residual.block_size", None, "no blocks to size"),
    ("residual", ['query = "input"'], ["--residual.mode=standard"], "residual.query", "learned", "no such option"),
    ("residual", ["heads = 2"], ["--residual.mode=denseformer"], "residual.heads", 1, "no such option"),
    ("residual", ["key_rank = 8"], ["--residual.weights=static"], "residual.key_rank", None, "looks at no keys"),
    ("training", ['recompute = "block"'], ["--residual.mode=standard"], "training.recompute", "layer", "has no blocks"),
    ("training", ["stop_after_steps = 9"], ["--training.steps=5"], "training.stop_after_steps", None, "the last step"),
    ("observe", ["profile_steps = [8, 9]"], ["--training.steps=5"], "observe.profile_steps", None, "8 to 9"),
    ("parallel", ["tensor = 2", "sequence = true"], ["--parallel.tensor=1"], "parallel.sequence", False, "no rank"),
    ("parallel", ["pipeline = 2", "virtual = 2"], ["--parallel.pipeline=1"], "parallel.virtual", 1, "interleave"),
    (
        "parallel",
        ["pipeline = 2", "virtual = 2", "micro_batch_group = 4"],
        ["--parallel.virtual=1"],
        "parallel.micro_batch_group",
        None,
        "take turns",
    ),
    (
        "parallel",
        ["pipeline = 2", "layers_per_stage = [1, 3]"],
        ["--parallel.pipeline=4"],
        "parallel.layers_per_stage",
        None,
        "2 numbers, wanted 4",
    ),
    (
        "parallel",
        ["pipeline = 2", "layers_per_stage = [1, 3]"],
        ["--model.num_layers=6"],
        "parallel.layers_per_stage",
        None,
        "sum 4, wanted 6",
    ),
    ("engine.deepspeed", ["zero_stage = 2"], ["--engine.kind=megatron"], "engine.deepspeed.zero_stage", 1, "not read"),
    (
        "schedule",
        ['kind = "wsd"', "decay_steps = 5"],
        ["--schedule.kind=constant"],
        "schedule.decay_steps",
        None,
        'for kind "wsd"',
    ),
    (
        "schedule",
        ['kind = "wsd"', "decay_steps = 5"],
        ["--schedule.kind=cosine"],
        "schedule.decay_steps",
        None,
        'for kind "wsd"',
    ),
    ("data", ['train = "t"', 'valid = "v"'], ["--data.train=none"], "data.valid", None, "data.train is not"),
]


@pytest.mark.parametrize(("section", "lines", "given", "key", "value", "words"), CASES)
def test_a_key_that_only_another_mode_uses_gives_way_to_a_mode_of_the_command_line(
    tmp_path: Path, section: str, lines: list[str], given: list[str], key: str, value: object, words: str
) -> None:
    path = write(tmp_path, with_lines(section, *lines))
    if key.startswith("engine"):
        path = write(tmp_path, path.read_text() + '\n[engine]\nkind = "deepspeed"\n')
    loaded = load_checked(path, given, purpose="plan")
    assert config_values(loaded.config, [key])[key] == value
    (note,) = (note for note in loaded.notes if note.startswith(f"{key}: "))
    assert words in note and f"({path}:" in note
    how = "left out" if value != "layer" else '"layer" instead'
    assert note.endswith(f"): {how}") and loaded.origins[key].endswith(f", {how}")


@pytest.mark.parametrize(("section", "lines", "given", "key", "value", "words"), CASES)
def test_two_that_contradict_each_other_in_one_place_are_refused(
    tmp_path: Path, section: str, lines: list[str], given: list[str], key: str, value: object, words: str
) -> None:
    if key == "schedule.decay_steps" and "cosine" in given[0]:
        pytest.skip("no contradiction: a cosine that ends there")
    path = write(tmp_path)
    on_the_command_line = [f"--{section}.{line.replace(' = ', '=', 1)}" for line in lines]
    others = [flag for flag in on_the_command_line if flag.split("=")[0] not in {word.split("=")[0] for word in given}]
    assert key in refusal(path, [*given, *others])


def test_values_that_rest_on_each_other_all_give_way(tmp_path: Path) -> None:
    path = write(tmp_path, with_lines("parallel", "pipeline = 2", "virtual = 2", "micro_batch_group = 2"))
    loaded = load_checked(path, ["--parallel.pipeline=1"], purpose="plan")
    assert (loaded.config.parallel.virtual, loaded.config.parallel.micro_batch_group) == (1, None)
    assert [note.partition(":")[0] for note in loaded.notes] == ["parallel.virtual", "parallel.micro_batch_group"]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 8, 20, 79, 80, 100, 160, 320])
def test_a_schedule_that_does_not_fit_keeps_its_proportions_and_one_that_fits_its_numbers(steps: int) -> None:
    """An eighth of warm-up and three eighths of decay, as the file has them of 160 steps."""
    loaded = load_checked(QUICKSTART, flags(training__steps=steps), purpose="plan")
    schedule = loaded.config.schedule
    wanted = (steps // 8, (3 * steps + 7) // 8) if steps < 80 else (20, 60)
    assert (schedule.warmup_steps, schedule.decay_steps) == wanted
    assert len(loaded.notes) == (2 if steps < 80 else 0)
    rates = [learning_rate(loaded.config.optimizer, schedule, steps, step) for step in range(1, steps + 1)]
    assert rates[-1] == pytest.approx(1e-4) and max(rates) <= 2e-3


def test_what_the_command_line_says_of_a_schedule_is_kept_and_refused_where_it_does_not_fit() -> None:
    loaded = load_checked(QUICKSTART, flags(training__steps=8, schedule__warmup_steps=4), purpose="plan")
    assert (loaded.config.schedule.warmup_steps, loaded.config.schedule.decay_steps) == (4, 3)
    assert refusal(QUICKSTART, flags(training__steps=8, schedule__warmup_steps=9)).keys() >= {"schedule.warmup_steps"}


def test_a_cosine_is_scaled_to_where_it_ends(tmp_path: Path) -> None:
    path = write(tmp_path, with_lines("schedule", "warmup_steps = 6", "decay_steps = 18"))
    loaded = load_checked(path, flags(training__steps=5), purpose="plan")
    assert (loaded.config.schedule.warmup_steps, loaded.config.schedule.decay_steps) == (1, 5)
    first = loaded.notes[0]
    assert first == f"schedule.warmup_steps: 6 of 20 steps, but training.steps = 5 ({path}:21): 1, in proportion"
    assert load_checked(path, flags(training__steps=40), purpose="plan").config.schedule.warmup_steps == 6
    kept = load_checked(path, flags(training__steps=19), purpose="plan")
    assert (kept.config.schedule.decay_steps, kept.notes) == (18, ()), "a cosine's end is a step, and takes no room"


@pytest.mark.parametrize(("origin", "value"), [("run.toml:9", None), (DEFAULT, 2), (COMMAND_LINE, 2)])
def test_only_what_the_file_states_gives_way(tmp_path: Path, origin: str, value: int | None) -> None:
    """Told of a key that a default or the command line gave, it is a problem that remains."""
    config = load(write(tmp_path)).config
    unused = Unused("residual.block_size", "2, but there are no blocks", "leave it out", ("residual.mode",))

    def rules(tried: RunConfig) -> list[Problem]:
        return [unused] if tried.residual.block_size is not None else []

    origins = {"residual.block_size": origin, "residual.mode": COMMAND_LINE}
    settled = give_way(config, origins, {}, all_keys(), rules)
    assert (settled.config.residual.block_size, len(settled.notes)) == (value, int(value is None))


def test_a_schedule_that_does_not_fit_its_own_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, with_lines("schedule", "warmup_steps = 21"))
    assert refusal(path).keys() == {"schedule.warmup_steps"}


def test_check_and_plan_tell_what_gave_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, given = write(tmp_path), ("--residual.mode", "standard")
    note = f'residual.block_size: 2, but residual.mode = "standard" has no blocks to size ({path}:9): left out'
    for command in ("check", "plan"):
        assert run(command, path, *given) == 0
        assert f"  note: {note}\n" in capsys.readouterr().out
        assert run(command, path, *given, "--json") == 0
        assert note in as_json(capsys)["notes"]
    assert load(path, list(given)).notes == (note,)
