"""The table of all assumptions of a guarantee; docs/reference/assumptions.md is written from it."""

from collections.abc import Mapping
from typing import Any, cast

from decrescendo.base.assumption import Assumption, Template, read_assumption
from decrescendo.errors import InvalidType

# About the independence of rows in a pass, assumed by the engine or another trainer: all codes ``rows-..``.
_ROWS = (
    Template("rows-declared-line",
         "the data that {} reads do not change what the pass computes for other examples",
         "a line named in `EngineSettings(declared=...)` read a value of the data",
         "use tensor operations there (`torch.where`), and remove the line from the list"),
    Template("rows-declared-operation", "{} keeps examples independent, as its registered rule says",
         "a pass ran a custom operation whose rule was declared with `register_rule`",
         "write it with torch's own operations"),
    Template("rows-own-generator", "the state of your own torch.Generator does not depend on the data",
         "model or loss draw random numbers from a generator of their own",
         "draw from torch's global generator, which the engine seeds"),
    Template("rows-own-clipper", "{}, which clips without checks, clips the gradient of each example separately",
         "a clipper other than `Engine` was used (`Reference`, or your own)", "train with the engine"),
    Template("rows-local-steps",
         "the local steps of a client use its own records alone (they run in torch.func.vmap, not in the engine)",
         "clients take several local steps (`LocalSteps`)", "take one gradient per client"),
    Template("rows-client-replies",
         "each client computes its reply from its own records alone, and whether it replies does not depend on who "
         "else is asked", "clients reply to a `Server`, which cannot see how a reply was made",
         "none, where clients compute elsewhere; `simulate` computes and checks replies itself"),
    Template("rows-client-sums", "each sum of a round adds one update per member, of norm at most C_t with telemetry",
         "the `Server` received sums from a secure aggregator, not replies",
         "receive replies one by one (`Placement.CENTRAL`)"),
    Template("rows-unrecorded",
         "examples were independent of each other in every pass (the version or program that made this run did not "
         "record this)", "a run was put together by hand, or by a version that recorded no assumptions",
         "train again"),
)  # fmt: skip

# About state that stays from one pass to the next.
_PASSES = (
    Template("stored-count", "the number of examples stored in {} does not change what a later pass computes",
         "model or loss store how many examples they saw", "count steps, or count outside model and loss"),
    Template("stored-unsearched",
         "the Python state of model and loss, beyond the first 20,000 objects that they reach, does not change what a "
         "later pass computes", "model or loss reach more Python objects than are searched for counters",
         "keep long lists and tables out of model and loss, or in tensors"),
    Template("tensors-read",
         "the tensors that {} reads, which are neither of the batch nor parameters or buffers of the model, do not "
         "depend on private records",
         "code of yours reads floating-point tensors that are no parameters or buffers of the model (class weights, "
         "means, a teacher); not looked for where examples are passed one by one",
         "not needed for constants and public data; otherwise leave them out: a gradient that they go into depends on "
         "records that are not in the batch"),
    Template("overwritten-constant",
         "the constant that {} overwrites does not depend on how many passes there were",
         "an operation overwrites a tensor that outlives the pass with a constant", "make a new tensor in each pass"),
    Template("rows-recorded-loop",
         "the loop took no values of a batch past torch's functions (assigned to `.data`, by `as_subclass`, through "
         "files) or from the data by another way than the private loader, and nothing that it had read chose which "
         "functions its first step calls, or what its data set gives",
         "a loop ran behind `decrescendo.integrations.opacus`, which records what torch's functions do",
         "give the loss to `dc.Trainer`, which checks it itself"),
    Template("replayed-passes",
         "model and loss read no clock, file or environment variable whose value changes during the run; a replayed "
         "pass uses what was read when it was captured",
         "passes were captured and replayed without Python (`EngineSettings(capture=\"auto\")`, the default); in "
         "`Engine.assumptions` alone: no run lists it, since whether a pass came again tells of the records' lengths, "
         "and a replay does not bear on the guarantee",
         "pass such a value as a tensor that is changed in place, or set `EngineSettings(capture=False)`"),
)  # fmt: skip

# About values published as they are, and other changes of a model's state.
_MODEL = (
    Template("public-buffers", "the buffers {} hold public statistics; gradients depend on them, and those that are "
         "saved are published as they are, without noise",
         "buffers differ from what their class constructs (running statistics, priors, code books)",
         "not needed if they come from public data; otherwise reset them before training"),
    Template("public-frozen-parameters",
         "the frozen parameters {} are public; they are published as they are, without noise",
         "some parameters have `requires_grad=False` from the beginning",
         "not needed if they come from public data; otherwise train them, or initialise them anew"),
    Template("public-changed-state",
         "only released or public values went into {}, which code outside of the training steps changed during the "
         "run; such buffers and frozen parameters are published as they are, without noise",
         "a loop or callback changed buffers or frozen parameters between steps", "keep them constant"),
    Template("adapters-from-data", "the rows that the adapters were initialised from ({}) are public",
         "PEFT initialised adapters by activations or gradients of rows that it was given",
         "initialise them without data, or from public rows"),
    Template("frozen-layer-entries",
         "the {} entries that frozen layers of class {} add to the state dict ({}, ..) are public; they are not in "
         "the run's weights",
         "frozen layers put more into the state dict than parameters and buffers (scales of quantised weights)",
         "not needed if the layers come from public data"),
    Template("parameters-added",
         "only released or public values went into the parameters {}, which code outside of the training steps added"
         " during the run", "a loop or callback gave the model new parameters during the run",
         "make all parameters before the first step"),
    Template("trained-set-changed",
         "only released or public values decided which parameters are trained; during the run {} by code outside of "
         "the training steps", "a loop or callback froze or unfroze parameters during the run",
         "decide which parameters are trained before the first step"),
    Template("began-trained",
         "on the same data, the privacy cost of an earlier run is added to this one's: an earlier run of this "
         "process trained a part of this run's initial state (weights, buffers, objects that the loss reaches)",
         "a run starts from weights that another run of the process trained",
         "start from initial or public weights; a `Store` adds up both runs"),
    Template("began-with-the-seed",
         "others see this run's weights or those that it began with, but not both: the noise of both was drawn from "
         "the same seed, and cancels in their difference",
         "a run goes on from weights that another run of the process trained with the same `seed`",
         "another `seed`, or `seed=dc.Secure()`"),
    Template("began-without-noise",
         "the initial state of this run (weights, buffers, objects that the loss reaches) depends on public data only: "
         "an earlier run of this process trained a part of it without noise",
         "a run starts from weights that another run of the process trained without noise",
         "start from initial or public weights"),
    Template("resumed-anew",
         "the loaded steps sampled, clipped and added noise as their history says, and nothing was released of steps "
         "after that checkpoint, which are taken again with other batches and other noise",
         "`load_checkpoint` of `decrescendo.integrations.opacus`, or a loaded history, came before the run",
         "give the loss to `dc.Trainer` with `checkpoints=`, which takes the same steps again"),
    Template("read-earlier",
         "numbers that another training of the same engine read of its batches (losses, scores) are in no loss, model "
         "or data of this one",
         "one `PrivacyEngine` trains several times, and another of its loops read such numbers",
         "do not read losses in the loop, or give them noise (`Telemetry`)"),
)  # fmt: skip

# About user code between steps, or in torch's hooks.
_LOOP = (
    Template("weights-written",
         "code that changed weights outside of optimizer.step() used released or public values only",
         "weights differ from those that the last step left", "change weights only by optimizer steps"),
    Template("optimizer-settings-changed",
         "code other than the run's scheduler= that changed the optimizer's settings between steps used released or "
         "public values only", "a learning rate or another setting changed, and `scheduler=` did not do it",
         "give the scheduler as `scheduler=`"),
    Template("settings-changed-after-diagnostics",
         "code that changed the optimizer's settings, after the private diagnostics of a step were read, did "
         "not use them", "a loop or callback read `diagnostics`, and settings changed later",
         "do not read the diagnostics, or do not change the settings"),
    Template("own-scheduler",
         "{} (your scheduler class) sets the learning rates from the number of steps and public values only",
         "the class of `scheduler=` is from neither torch nor Transformers", "use one of torch's schedulers"),
    Template("own-optimizer", "{} (your optimizer class) changes the weights by released or public values only",
         "the class of the optimizer is from neither torch nor decrescendo",
         "use an optimizer of `torch.optim` or `decrescendo.optim`"),
    Template("gradients-changed",
         "code that changed gradients between fill_gradients and the optimizer's step used released or public values"
         " only", "a loop, or a closure of the optimizer's step, changed `.grad` after `Trainer.fill_gradients`",
         "call the optimizer's step right after it, without a closure that computes gradients"),
    Template("steps-skipped",
         "the decision to take no optimizer step on a noisy gradient used released or public values only",
         "a loop called `Trainer.fill_gradients`, and then not the optimizer's step",
         "call the optimizer's step after every `fill_gradients`, also where the batch is `None`"),
    Template("optimizer-state",
         "the optimizer's state at the start ({}) depends on public or released data only",
         "the optimizer had moments or averages before the first step", "start with a new optimizer"),
    Template("scheduler-steps",
         "when the scheduler took its steps, if not one after each step of the optimizer, depends on public or "
         "released values only",
         "a loop with `fill_gradients` stepped its scheduler less or more often than its optimizer",
         "step the scheduler once after each step of the optimizer"),
    Template("other-data",
         "the data given to `batches` later in the run are the same examples, and no example decided how another was "
         "changed", "a loop gave `Trainer.batches` another data set in the midst of a run",
         "pass one data set to `batches`, which makes each example from itself"),
    Template("batches-changed", "code that changed a batch before step made each row from its own example alone",
         "a loop passed `Trainer.step` another batch than the one drawn",
         "change examples in the data set or in collate_fn"),
    Template("ended-on-a-batch",
         "the decision to end the run, after a batch was drawn and before it was passed to step, does not depend on it",
         "a loop ended between drawing a batch and its step", "pass every batch to step"),
    Template("ended-early", "code that ended the run before its plan did used released or public values only",
         "fewer steps were taken than planned",
         "take all steps, or let released numbers end the run (`steering.Plateau`)"),
    Template("ended-after-diagnostics",
         "code that ended the run early, after the private diagnostics of a step were read, did not use them",
         "a loop or callback read `diagnostics`, and the run ended early",
         "do not read the diagnostics, or take all steps"),
    Template("own-policy", "the policy that decides noise and clipping reads released and public values only",
         "an `Adaptive` has your own policy, or the class of a `ClipController` is yours",
         "use `FromSchedule`, a plan, or `ClipController` itself"),
    Template("own-filter",
         "{} (your filter) grants only releases that fit its budget", "an `Adaptive` has your own filter",
         "use a filter of `decrescendo.accounting.filters`"),
)  # fmt: skip

# About code that makes rows from records.
_DATA = (
    Template("own-collate-fn",
         "data[i] and collate_fn make example i from record i alone, and store nothing of one example for another "
         "(one example of each batch is made twice and compared)",
         "the data are your own `Dataset` or another object, or there is a `collate_fn`",
         "not needed; tensors, arrays, data frames of numbers and lists without a `collate_fn` need no assumption"),
    Template("records-share-objects",
         "the tensors that several records hold in common are public, or what is in them needs no privacy",
         "examples are passed one by one, and the first two records hold one tensor (the graph of their nodes)",
         "cut the data so that each record has its own part"),
    Template("own-ids", "each person has one id in `people=`, and each row the id of its person alone",
         "a plan for people got `people=`", "not needed for ids that a data base keeps unique"),
    Template("own-strata", "the stratum of each record follows from that record alone (not from a mean, median or "
         "model of several), and how many records a stratum has is public", "the plan has strata",
         "sample all records alike"),
    Template("own-rows",
         "Rows.take makes each row from its own example (one row of the first batch is taken alone and compared)",
         "the data are your own `Rows`", "pass tensors, arrays or a list"),
    Template("own-tensor-class",
         "{} (your data class) makes row i from record i alone (one row of the first batch is taken alone and "
         "compared)", "the data are tensors, dicts or lists of your own class",
         "pass plain tensors: `.as_subclass(torch.Tensor)`"),
    Template("same-order",
         "data passed again within an epoch, or while records take turns, have each record in the same row (each "
         "client under the same number) as before (otherwise a record may take part more often)",
         "`Trainer.batches` got another object within an epoch of random allocation, or in a run with correlated "
         "noise; a federated run with correlated noise went on from its journal",
         "pass the same object, or begin anew"),
    Template("ranks-alike", "every rank has the same rows in the same order (some of them are compared)",
         "there are too many rows for the ranks to compare all", "not needed"),
    Template("own-world", "{} (your World) adds the plan's noise to one clipped sum", "`world` is of your own class",
         "use `decrescendo.distributed.join`"),
)  # fmt: skip

# About searches, clients, other trainers; and declarations.
_OTHERS = (
    Template("own-attempt",
         "attempt makes each trial from settings and plan alone, stores nothing of one trial for another, and "
         "reveals nothing", "`search_privately` got an `attempt`", "omit `attempt`"),
    Template("own-clients",
         "your code that loads a client's records stores nothing of one client for another (the number of clients is "
         "compared)", "`Clients` use your own function or data set", "use `Clients.equal` with tensors or arrays"),
    Template("own-dropouts",
         "whether a client answers does not depend on who else is asked (each is asked twice, in two orders, and "
         "compared)", "`simulate` got `dropouts`", "omit `dropouts`"),
    Template("client-noise", "each member adds its own share of the noise, drawn where nobody else sees it",
         "the placement is DISTRIBUTED, and clients reply from elsewhere",
         "add the noise on the server (`Placement.CENTRAL`)"),
    Template("one-row-a-record",
         "each row of train_dataset is a separate record (if .map or your own data set class made rows, the library "
         "cannot see which record they came from)", "a Hugging Face trainer makes rows of other rows",
         "not needed if each record makes one row"),
    Template("unknown-arguments",
         "arguments that this version of decrescendo does not know ({}) change neither batches nor gradients nor the"
         " loss", "a Hugging Face trainer has newer arguments whose values are not the defaults",
         "keep their defaults"),
    Template("eval-data-public",
         "the data that the trainer evaluates on are public (declared with public_eval=True): their scores may "
         "choose checkpoint, learning rate and end of the training", "a Hugging Face trainer has `public_eval=True`",
         "evaluate after the run, on public data"),
    Template("declared", "{}", "`Trainer.assume` was called", "do not call it"),
)  # fmt: skip

# In the order of the page.
TEMPLATES = (*_ROWS, *_PASSES, *_MODEL, *_LOOP, *_DATA, *_OTHERS)
_BY_CODE = {found.code: found for found in TEMPLATES}


def template(code: str) -> Template:
    """The row of the table with this code.

    >>> template("own-optimizer").format("Mine").sentence
    'Assumed: Mine (your optimizer class) changes the weights by released or public values only'
    """
    return _BY_CODE[code]


def assumed(code: str, *names: object) -> Assumption:
    """The assumption with this code, with ``names`` put into its sentence.

    >>> assumed("ended-early").sentence
    'Assumed: code that ended the run before its plan did used released or public values only'
    """
    return template(code).format(*names)


def assumptions_in(provenance: Mapping[str, Any]) -> tuple[Assumption, ...]:
    """The assumptions in the provenance of a run's file; ``rows-unrecorded`` if it has none recorded.

    >>> [assumption.code for assumption in assumptions_in({})]
    ['rows-unrecorded']
    """
    texts: object = provenance.get("assumptions", [assumed("rows-unrecorded").written()])
    if not isinstance(texts, list):
        raise InvalidType(f"assumptions must be a list, got {type(texts).__name__}")
    return tuple(map(read_assumption, cast("list[object]", texts)))


# Of an engine alone. A run does not list it: whether a pass came again follows from the lengths of the records, and a
# replay does not bear on the guarantee.
REPLAYED = assumed("replayed-passes")
