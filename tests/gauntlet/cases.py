"""What each training of the gauntlet is expected to be told.

Expectations come from what the person who reported the fault needed to hear, and were written
down before the checks that meet them. Where a report leaves open which of two codes fits, the
other stands in `or_codes`. Nothing here is read by ddpdoctor.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
PLAIN = "plain"  # `ddpdoctor run`, the script unchanged
WRAPPED = "wrapped"  # torchrun, the script calls `ddpdoctor.wrap`
BOTH = (PLAIN, WRAPPED)


@dataclass(frozen=True)
class Case:
    """A training, how it is started, and what the report has to say of it.

    `code` None: nothing at `at_least` or above. `culprits` () means that no rank is to blame
    alone: none or all of them; None means that the report does not say. `fix_word` is a regular
    expression that the fix must match, in any case. `port` is held by somebody else meanwhile.
    """

    name: str
    report: str
    script: str
    ranks: int = 2
    modes: tuple[str, ...] = BOTH
    code: str | None = None
    culprits: tuple[int, ...] | None = ()
    fix_word: str = ""
    or_codes: tuple[str, ...] = ()
    at_least: str = "warning"
    port: int | None = None
    issue: int = 5


K05 = (
    Case(
        "constant-loss", "H42", "detector", code="DD506", culprits=(1,), or_codes=("DD508",),
        fix_word=r"loss|0 ?\*",
    ),
    Case(
        "skipped-branch", "H43", "lanes", code="DD503", culprits=(1,),
        fix_word=r"0 ?\*|zero|mask",
    ),
    Case(
        "text-only-batch", "H44", "captions", code="DD503", culprits=(1,),
        fix_word=r"0 ?\*|zero|weight 0|dummy",
    ),
    Case(
        "nothing-used", "H46", "masked_words", code="DD506", culprits=(1,), or_codes=("DD508",),
        fix_word=r"loss|0 ?\*|touch",
    ),
    Case(
        "layer-drop", "H47", "deep_stack", code="DD503",
        fix_word=r"seed|draw|same on|all ranks|every rank",
    ),
)  # fmt: skip

K08 = (
    Case(
        "dead-weights", "H63", "multitask", code="DD503",
        fix_word=r"freeze|remove|requires_grad|find_unused_parameters",
    ),
    Case(
        "reentrant-shared", "H64", "tied_blocks", code="DD509",
        fix_word=r"use_reentrant=False",
    ),
    Case(
        "reentrant-and-search", "H64", "long_documents", code="DD509",
        fix_word=r"use_reentrant=False|static_graph",
    ),
    Case("used-outside-forward", "H65", "image_text", code="DD509", fix_word=r"forward"),
    Case(
        "two-forwards-and-buffers", "H66", "style_pair", code="DD509",
        fix_word=r"broadcast_buffers=False|forward_sync_buffers|in.?place|after|clone",
    ),
    Case(
        "several-forwards-checkpointed", "H70", "many_tasks", code="DD509",
        or_codes=("DD501", "DD502"), fix_word=r"use_reentrant=False|one forward|single forward",
    ),
)  # fmt: skip

K09 = (
    Case("calls-module", "H71", "speech", code="DD508", fix_word=r"forward|model\("),
    Case("head-calls-module", "H73", "robot", code="DD508", fix_word=r"forward|model\("),
    Case(
        "head-not-wrapped", "H73", "policy", code="DD508", or_codes=("DD406", "DD501"),
        fix_word=r"wrap|DDP|DistributedDataParallel",
    ),
    Case(
        "cast-after-wrap", "H74", "simulation", code="DD508", or_codes=("DD509",),
        fix_word=r"wrap",
    ),
    Case(
        "parameter-replaced", "H75", "retail", code="DD509", or_codes=("DD508",),
        fix_word=r"before|wrap|again",
    ),
    Case(
        "no-sync-without-forward", "H77", "big_batch", code="DD508", or_codes=("DD509",),
        fix_word=r"forward",
    ),
    Case("no-sync-without-effect", "H79", "patches", code="DD204", fix_word=r"forward"),
    Case(
        "unfrozen-after-wrap", "lesson 7", "finetune", code="DD508", or_codes=("DD509",),
        fix_word=r"before|wrap|again",
    ),
    Case(
        "other-order", "lesson 7", "experts", code="DD501", culprits=None,
        or_codes=("DD405", "DD502", "DD509"), fix_word=r"order",
    ),
    Case("own-scale", "K09", "compressed", code="DD502", fix_word=r"hook|same"),
)  # fmt: skip

K10 = (
    Case("times-world-size", "H81", "prices", code="DD510", fix_word=r"average|factor|world"),
    Case(
        "uneven-tokens", "H83", "summaries", code="DD507", culprits=None,
        fix_word=r"global|all_reduce|all ranks|total",
    ),
    Case(
        "gather-without-gradient", "H86", "pairs", code="DD510", at_least="info",
        fix_word=r"gradient|autograd",
    ),
    Case("norm-reduced-again", "H87", "translation", code="DD510", fix_word=r"local|already"),
)  # fmt: skip

K11 = (
    Case("no-sampler", "H88", "photos", code="DD302", fix_word=r"DistributedSampler"),
    Case("stream-not-split", "H90", "stream", code="DD306", fix_word=r"split|rank|shard"),
    Case("no-set-epoch", "H91", "tabular", code="DD305", fix_word=r"set_epoch"),
    Case("own-shuffle", "H93", "manifest", code="DD307", fix_word=r"seed", culprits=None),
    Case(
        "resumed-on-rank-0", "H95", "resumed", ranks=3, code="DD304", culprits=(0,),
        or_codes=("DD302", "DD303", "DD307"), fix_word=r"all ranks|every rank|same",
    ),
    Case("same-worker-seed", "H96", "augment", code="DD308", fix_word=r"rank"),
    Case("all-are-rank-0", "K11", "weather", code="DD303", culprits=None, fix_word=r"rank"),
    Case("seed-by-rank", "K11", "genomes", code="DD303", culprits=None, fix_word=r"seed"),
)  # fmt: skip

K12 = (
    Case(
        "precise-statistics", "H99", "cells", code="DD504",
        fix_word=r"SyncBatchNorm|average|broadcast|all_reduce",
    ),
    Case(
        "own-statistics", "H100", "poses", code="DD504",
        fix_word=r"SyncBatchNorm|average|broadcast|all_reduce",
    ),
    Case(
        "loaded-on-rank-0", "H102", "warm_start", ranks=3, code="DD501", culprits=(0,),
        fix_word=r"load|before",
    ),
    Case(
        "padding-in-evaluation", "H103", "leaderboard", ranks=3, code="DD302", at_least="info",
        fix_word=r"padding|duplicate|drop",
    ),
    Case(
        "total-reduced-in-place", "H104", "ad_clicks", code="DD510",
        fix_word=r"copy|clone|reset|in place",
    ),
)  # fmt: skip

K13 = (
    Case(
        "no-folder-yet", "H108", "experiments", code="DD901", culprits=(1,),
        fix_word=r"barrier|makedirs|exist",
    ),
    Case("read-too-early", "H109", "best_model", code="DD901", culprits=(1,), fix_word="barrier"),
    Case(
        "cache-written-by-all", "H110", "vocabulary", code="DD901", culprits=(0,),
        fix_word=r"barrier|rank 0|once",
    ),
)  # fmt: skip

# Those of one mode fail before a model is made, or never make one: in a script that only calls
# `ddpdoctor.wrap` nothing of ddpdoctor has run by then, so there is nobody who could say it.
K14 = (
    Case("rank-twice", "H112", "cluster", modes=(PLAIN,), code="DD401", fix_word=r"RANK|rank"),
    Case(
        "too-few-processes", "H113", "allocation", modes=(PLAIN,), code="DD403",
        or_codes=("DD407",), fix_word=r"WORLD_SIZE|world|tasks|start",
    ),
    Case(
        "each-alone", "H113", "container", code="DD403",
        fix_word=r"WORLD_SIZE|world_size",
    ),
    Case(
        "port-in-use", "H119", "service", modes=(PLAIN,), code="DD408", culprits=None,
        fix_word=r"port", port=29517,
    ),
    Case("terminal-closed", "H123", "overnight", code="DD901", fix_word=r"tmux|setsid|terminal"),
)  # fmt: skip

# What the reports ask of the tool, beside single reports, and uneven batches that hang later.
ASKED = (
    Case(
        "shorter-loader", "H01", "split_files", code="DD304", culprits=(1,),
        fix_word=r"join|drop_last|pad|sampler",
    ),
    Case(
        "longer-loader", "H02", "split_by_hand", ranks=4, code="DD304", culprits=None,
        fix_word=r"join|drop_last|pad|split|sampler",
    ),
    Case(
        "random-size", "H04", "sampled_corpus", code="DD307", or_codes=("DD304",), culprits=None,
        fix_word=r"seed|same",
    ),
    Case(
        "own-rate", "settings", "tuning", ranks=3, code="DD405", culprits=(1,),
        fix_word=r"lr|rate",
    ),
    Case(
        "own-batch-size", "settings", "memory", ranks=3, code="DD405", culprits=(2,),
        or_codes=("DD507",), fix_word=r"batch",
    ),
    Case(
        "own-variables", "settings", "nodes", ranks=3, code="DD404", culprits=(1,),
        fix_word=r"same",
    ),
    Case("not-a-number", "first NaN", "spectra", code="DD505", culprits=(1,)),
    Case("broken-transport", "H134", "fabric", code="DD505"),
    Case(
        "never-wrapped", "K09", "prototype", modes=(PLAIN,), code="DD406",
        fix_word=r"wrap|DistributedDataParallel",
    ),
    Case("few-files", "ulimit", "many_files", code="DD409", fix_word=r"ulimit|limit"),
)  # fmt: skip

# Ranks that others wait for, from the reports on slow trainings.
SLOW = (
    Case(
        "slow-disk-of-one", "P11", "scans", ranks=3, code="DD101", culprits=(1,), issue=6,
        fix_word=r"loader|worker|storage|sample",
    ),
    Case(
        "debug-left-on", "P67", "ensemble", ranks=3, code="DD101", culprits=(2,), issue=6,
        fix_word=r"forward",
    ),
    Case(
        "hidden-in-backward", "P67", "physics", code="DD101", culprits=(1,), issue=6,
        fix_word=r"backward",
    ),
    Case(
        "checks-of-one", "P67", "pruned", code="DD101", culprits=(1,), issue=6,
        fix_word=r"optimizer",
    ),
    Case(
        "pictures-of-one", "P67", "histograms", ranks=3, code="DD101", culprits=(1,), issue=6,
        fix_word=r"every|thread|spread",
    ),
    Case(
        "long-dialogues", "P68", "dialogues", code="DD102", issue=6,
        fix_word=r"balance|length|token",
    ),
    Case(
        "garbage-of-one", "P70", "graph_store", code="DD105", culprits=(1,), issue=6,
        fix_word=r"freeze|gc\.",
    ),
    Case(
        "quota-of-one", "P10", "tenant", code="DD107", culprits=(1,), issue=6,
        fix_word=r"quota|limit",
    ),
    Case(
        "too-many-threads", "P01", "dense", code="DD106", issue=6,
        fix_word=r"OMP_NUM_THREADS",
    ),
    Case(
        "journal-of-rank-0", "P80", "journal", ranks=3, code="DD108", culprits=(0,), issue=6,
        fix_word=r"every|thread|async|spread",
    ),
    Case(
        "saves-now-and-then", "P83", "milestones", code="DD108", culprits=(0,),
        or_codes=("DD104",), issue=6, fix_word=r"every|async|thread|seldom",
    ),
    Case(
        "validates-often", "P81", "forecast", code="DD104", issue=6,
        fix_word=r"every|seldom|less often|thread",
    ),
    Case("ever-longer-list", "P72", "curves", code="DD109", issue=6, fix_word=r"grow|list|keep"),
    Case(
        "heat", "P77", "summer", code="DD109", culprits=(1,), or_codes=("DD101",), issue=6,
        fix_word=r"clock|temperature|host|device",
    ),
    Case(
        "slow-node", "P75", "two_nodes", ranks=4, code="DD103", culprits=(2, 3), issue=6,
        fix_word=r"node-b",
    ),
    Case("bursts", "P13", "archive", code="DD301", issue=6, fix_word=r"worker"),
    Case(
        "metrics-one-by-one", "P64", "species", code="DD205",
        fix_word=r"every N|one tensor|into one",
        issue=6,
    ),
    Case(
        "objects-each-step", "P64", "ranker", code="DD205", fix_word=r"every N|once|tensor",
        issue=6,
    ),
    Case(
        "statistics-over-ranks", "P58", "shared_norm", code="DD205",
        fix_word=r"SyncBatchNorm|fewer", issue=6,
    ),
    Case(
        "tiny-buckets", "P36", "towers", code="DD202", fix_word=r"bucket_cap_mb", issue=6,
    ),
    Case(
        "search-left-on", "P50", "residual", code="DD207", fix_word=r"find_unused_parameters",
        issue=6,
    ),
)  # fmt: skip

FAULTS = K05 + K08 + K09 + K10 + K11 + K12 + K13 + K14 + ASKED + SLOW

# In turn by `ddpdoctor run` and by `wrap`: the one tells as much of false alarms as the other.
HEALTHY = tuple(
    Case(f"healthy-{script.replace('_', '-')}", "", script, ranks, (mode,))
    for script, ranks, mode in (
        ("mlp", 2, PLAIN),
        ("four_ranks", 4, WRAPPED),
        ("convolutions", 2, PLAIN),
        ("language", 2, WRAPPED),
        ("tagger", 2, PLAIN),
        ("recommender", 2, WRAPPED),
        ("faces", 2, PLAIN),
        ("accumulated", 2, WRAPPED),
        ("half_precision", 2, PLAIN),
        ("recomputed", 2, WRAPPED),
        ("fit", 2, PLAIN),
        ("shards", 2, WRAPPED),
        ("uneven", 2, PLAIN),
        ("rare_classes", 2, WRAPPED),
        ("by_length", 2, PLAIN),
        ("two_sources", 2, WRAPPED),
        ("transfer", 2, PLAIN),
        ("averaged", 2, WRAPPED),
        ("clipped", 2, PLAIN),
        ("metrics", 2, WRAPPED),
        ("saved", 2, PLAIN),
        ("compiled", 2, WRAPPED),
        ("routed", 2, PLAIN),
        ("continued", 2, WRAPPED),
        ("early_stop", 2, PLAIN),
        ("noisy", 2, WRAPPED),
        ("own_loop", 2, PLAIN),
        ("small_numbers", 2, WRAPPED),
        ("views", 2, PLAIN),
        ("rare_checkpoint", 2, WRAPPED),
        ("warm_up", 2, PLAIN),
        ("brief", 2, WRAPPED),
        ("jitter", 3, PLAIN),
        ("curriculum", 2, WRAPPED),
        ("wide", 2, WRAPPED),
        ("epoch_log", 2, PLAIN),
        ("contrast", 2, WRAPPED),
    )
)

CASES = FAULTS + HEALTHY

# Reports of K05 and K08 to K14 that have no case, and why.
LEFT_OUT = {
    "H98": "needs a framework that swaps the sampler; from the outside it is the user's choice",
    "H114": "needs a GPU",
    "H116": "needs GPUs",
    "H118": "needs GPUs with a broken peer-to-peer path",
    "H121": "needs NCCL",
    "H124": "argparse ends every rank with a message of its own before torch is used",
}
