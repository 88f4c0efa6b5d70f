"""The first run of the README: problems, model, arguments, installer; and one short job from nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `examples` is not part of the installed package

from examples.first_run import job, report, task  # noqa: E402
from examples.first_run.__main__ import parse  # noqa: E402


@pytest.fixture(scope="module")
def problems():
    pytest.importorskip("reasoning_gym")
    return task.Task(n_train=300, n_val=100).problems(seed=1)


def test_no_held_out_problem_is_trained_on(problems):
    train, held_out = ({problem.prompt for problem in part} for part in problems)
    assert (len(train), len(held_out)) == (300, 100)  # no repetition either
    assert not train & held_out


def test_problems_depend_on_the_seed_alone(problems):
    small = task.Task(n_train=300, n_val=100)
    assert small.problems(seed=1) == problems
    assert small.problems(seed=2) != problems


def test_more_problems_than_there_are():
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match=r"250 different problems were asked for.*Ask for fewer"):
        task.Task(max_terms=2, n_train=200, n_val=50).problems(seed=1)  # 2 * 10 * 10 are all


def test_reward_is_the_verifiers(problems):
    from examples.first_run.reward import compute_score

    (problem, *_), _ = problems
    extra = {"entry": json.dumps(problem.entry)}
    assert compute_score("chain_sum", f" {problem.answer}\n", problem.answer, extra) == {"score": 1.0, "acc": 1.0}
    assert compute_score("chain_sum", "", problem.answer, extra) == {"score": 0.0, "acc": 0.0}
    partly = compute_score("chain_sum", f"{problem.answer}77", problem.answer, extra)
    assert 0 < partly["score"] < 1
    assert partly["acc"] == 0


def test_tokenizer_is_what_verl_and_transformers_expect(tmp_path):
    transformers = pytest.importorskip("transformers")
    from examples.first_run.model import build_tokenizer, encode_prompt

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("3 - 12 =", "\n", "user assistant", "Grüße, 世界"):
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.decode(loaded.encode(text)) == text
    assert len(loaded.encode("\n")) == 1
    assert encode_prompt(loaded, "1 + 2 =") == encode_prompt(tokenizer, "1 + 2 =")


def test_success_is_what_decoding_gives(problems):
    """`success` decides without generating; compare with generation, on a model that has learned a little."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from examples.first_run import model as m

    train, _ = problems
    tokenizer = m.build_tokenizer()
    model = m.build_model(tokenizer, m.Size(hidden=32, layers=1, heads=2), seed=0)
    end, pad = tokenizer.convert_tokens_to_ids([m.END, m.PAD])
    rows = m.encode(tokenizer, train)
    steps = m.warm_start(model, rows, pad, m.WarmStart(learn_to=0.06, start_at=0.05, check_every=5), seed=0)
    assert steps > 5
    greedy, sampled = m.success(model, rows, pad)
    assert 0 < sampled < 1
    solved = 0
    for prompt, answer in rows:
        out = model.generate(torch.tensor([prompt]), max_new_tokens=len(answer), do_sample=False, eos_token_id=end)
        solved += out[0, len(prompt) :].tolist() == answer
    assert solved > 0
    assert greedy == pytest.approx(solved / len(rows))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimator", "shrinkag"], "there is no estimator 'shrinkag'. Did you mean 'shrinkage'? Valid: shrinkage,"),
        (["--rollout", "sglang"], "there is no rollout 'sglang'. Valid: hf, vllm."),
        (["--steps", "0"], "must be a whole number from 1; got '0'"),
        (["--seed", "x"], "must be a whole number from 1; got 'x'"),
        (["lr"], "'lr' is no Hydra override; write key=value"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        parse(arguments)
    assert message in capsys.readouterr().err


def test_every_estimator_of_the_plugin_can_be_trained_with():
    from refbase import CATALOG
    from verl_ext.options import verl_name

    names = [verl_name(name) for name in CATALOG]
    assert set(job.ESTIMATORS) == {*names, "grpo", "rloo", "opo"}  # and verl's own three of the same formulas
    for name in names:
        assert parse(["--estimator", name]).estimator == name


@pytest.mark.parametrize(("page", "line"), [("README.md", "make train ESTIMATOR="), ("Makefile", "ESTIMATOR=NAME")])
def test_what_can_be_set_is_listed(page, line):
    _, _, after = (ROOT / page).read_text().partition(line)
    listed = re.findall(r"[a-z_]+", after.partition("make train" if page == "README.md" else "SEED=")[0])
    assert set(job.ESTIMATORS) <= set(listed)


def test_arguments_are_checked_with_the_standard_library_alone():
    """`make train` does so before anything is installed."""
    command = [sys.executable, "-I", "-S", "-c"]
    code = "from examples.first_run.__main__ import main; main(['--check'])"
    subprocess.run([*command, f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"], check=True, cwd=ROOT)


def test_installer_refuses_a_python_that_verl_does_not_run_on(monkeypatch):
    sys.path.insert(0, str(ROOT / "requirements"))
    import install

    monkeypatch.setattr(install.sys, "version_info", (3, 13, 1))
    with pytest.raises(install.Problem, match=r"3\.10, 3\.11 or 3\.12; .* is 3\.13\.1.*PYTHON=python3\.11"):
        install.check_python()
    monkeypatch.undo()
    install.check_python()


def test_metrics_of_a_run_in_progress(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert job.metrics(path) == []
    path.write_text('{"step":0,"data":{"val-core/chain_sum/acc/mean@1":0.25}}\n{"step":1,"data":{"critic/sc')
    records = job.metrics(path)
    assert records == [{"step": 0, "val-core/chain_sum/acc/mean@1": 0.25}]
    assert job.curve(records, job.success_key(records)) == [(0, 0.25)]


@pytest.mark.e2e
@pytest.mark.verl
@pytest.mark.slow
def test_short_run_from_nothing(tmp_path):
    pytest.importorskip("verl")
    from examples.first_run.model import Size, WarmStart
    from examples.first_run.prepare import Recipe, load, prepare

    recipe = Recipe(
        task=task.Task(n_train=64, n_val=16),
        size=Size(hidden=32, layers=1, heads=2),
        warm_start=WarmStart(learn_to=0.05, start_at=0.05, check_every=5),
    )
    assert load(recipe, tmp_path) is None
    prepared = prepare(recipe, tmp_path)
    assert prepare(recipe, tmp_path, progress=pytest.fail) == prepared  # reused, not made again

    short = job.Job(
        folder=tmp_path / "run",
        model=prepared.model,
        train=prepared.train,
        val=prepared.val,
        prompt_length=prepared.prompt_length,
        steps=2,
        prompts=4,
        rollouts=2,
        test_every=1,
    )
    steps = []
    records = job.run(short, lambda record: steps.append(record["step"]))
    assert steps == [record["step"] for record in records] == [0, 1, 2]
    # Held-out success before training, as verl's rollout measures it, is what `success` found without generating.
    summary = report.summarise(records, n_val=16)
    assert summary.before == pytest.approx(prepared.start_success)
    report.plot(records, short, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert (short.checkpoints / "global_step_2" / "actor").is_dir()

    # What the user is told to copy runs as it is: Hydra reads the same configuration from it.
    script = short.script().replace("verl_ext.cpu.run", "verl_ext.cpu.run --cfg job")
    shown = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=300, env={**os.environ, "COLUMNS": "200"}
    )
    assert shown.returncode == 0, shown.stderr
    assert "adv_estimator: shrinkage" in shown.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal at a parent's end")
def test_a_job_ends_with_the_program_that_runs_it(tmp_path):
    """However that ends: a job that goes on would hold ports, cores and memory, and nobody would know."""
    program = f"""
import sys
from pathlib import Path
from examples.first_run import job
said = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
job.Job.command = lambda self: [sys.executable, "-c", said]
job.Job.script = lambda self: ""
job.run(job.Job(Path({str(tmp_path)!r}), *[Path("none")] * 3, prompt_length=8))
"""
    runner = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    log = tmp_path / "train.log"
    try:
        wait_for(lambda: log.exists() and log.read_text().strip())
        pid = int(log.read_text())
        runner.kill()
        runner.wait()
        wait_for(lambda: not alive(pid))
    finally:
        runner.kill()


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_failed_job_shows_the_end_of_its_log(tmp_path, monkeypatch):
    failing = job.Job(tmp_path, *(tmp_path / name for name in ("model", "train", "val")), prompt_length=8)
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    monkeypatch.setattr(job.Job, "command", lambda self: command)
    monkeypatch.setattr(job.Job, "script", lambda self: "")
    with pytest.raises(job.JobFailed, match=r"no such thing(.|\n)*exit code 1.*train\.log"):
        job.run(failing)
