"""TRL's GRPOTrainer on the scene that ours trains: the same model directory, prompts, group size and learning rate.

    python run_trl.py SCENE --steps N --threads T [--until REWARD]     in an environment of trl.txt

Prints one JSON line: seconds of each step, samples a step, tokens of the answers, the mean reward of each step. It is
synchronous, and generates in its own process with `generate`, as TRL does without vLLM. One optimizer step a batch, the
whole batch in one pass, no gradient checkpointing, no reference model: its fastest honest setting.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from datasets import Dataset
from repeat_reward import compute_score
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

AVERAGED = 10
"""Steps over which the reward is averaged before it is compared with --until."""


class Clock(TrainerCallback):
    """Notes when steps end and what their rewards are; ends the run at a reward."""

    def __init__(self, until):
        self.until, self.ends_s, self.rewards = until, [], []

    def on_train_begin(self, *args, **kwargs):
        self.ends_s.append(time.perf_counter())

    def on_step_end(self, *args, **kwargs):
        self.ends_s.append(time.perf_counter())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "reward" in (logs or {}):
            self.rewards.append(float(logs["reward"]))
            last = self.rewards[-AVERAGED:]
            if self.until and len(last) == AVERAGED and sum(last) / AVERAGED >= self.until:
                control.should_training_stop = True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--until", type=float)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scene = json.loads((args.scene / "scene.json").read_text())
    model_dir = str(args.scene / "model")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_dir, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    lengths = []

    def reward(completions, completion_ids, truth, **kwargs):
        lengths.extend(map(len, completion_ids))
        answers = [completion[0]["content"] for completion in completions]
        info = {"length": scene["scored"]}
        return [compute_score("repeat", said, true, info) for said, true in zip(answers, truth, strict=True)]

    rows = [{"prompt": [{"role": "user", "content": f"{d}="}], "truth": str(d)} for d in scene["digits"]]
    samples = scene["prompts"] * scene["group"]
    with tempfile.TemporaryDirectory() as scratch:
        clock = Clock(args.until)
        config = GRPOConfig(
            output_dir=scratch,
            max_steps=args.steps,
            per_device_train_batch_size=samples,
            num_generations=scene["group"],
            max_completion_length=scene["max_new_tokens"],
            temperature=1.0,
            beta=0.0,
            learning_rate=scene["lr"],
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            adam_beta2=0.95,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            seed=scene["seed"],
        )
        trainer = GRPOTrainer(
            model=model,
            args=config,
            reward_funcs=reward,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            callbacks=[clock],
        )
        trainer.train()
    steps_s = [end - start for start, end in itertools.pairwise(clock.ends_s)]
    print(
        json.dumps({"steps_s": steps_s, "samples": samples, "tokens": sum(lengths), "rewards": clock.rewards}),
        flush=True,
    )


if __name__ == "__main__":
    main()
