"""First on PYTHONPATH under `ddpdoctor run`: record every DDP model of this interpreter.

Only an import hook is installed; nothing of torch or ddpdoctor is loaded before the script does.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_TARGET = "torch.nn.parallel.distributed"
_HERE = os.path.dirname(os.path.abspath(__file__))


class _RecordDdp(importlib.abc.MetaPathFinder):
    """Lets DDP's module load as usual, then has the recorder watch the class."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _watch(module.DistributedDataParallel)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch(ddp_class: Any) -> None:
    """Record each instance from its construction on; the recorder is imported only then."""
    construct = ddp_class.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder = _begin(args[0] if args else kwargs.get("module"))
        construct(self, *args, **kwargs)
        if recorder is not None:
            recorder.guard.run(recorder.add, self)

    __init__.__wrapped__ = construct  # type: ignore[attr-defined]
    ddp_class.__init__ = __init__


def _begin(module: Any) -> Any:
    """The recorder; None, with a sentence, where ddpdoctor is not installed for this Python."""
    if importlib.util.find_spec("ddpdoctor") is None:
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))
    try:
        from ddpdoctor.recorder import begin
    except ImportError as error:
        sys.stderr.write(f"ddpdoctor: cannot record here; training goes on ({error})\n")
        return None
    return begin(module)


def _chain() -> None:
    """Run the sitecustomize that this one stands in front of, if there is one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _RecordDdp())
_chain()
