"""What a study says of a downstream experiment, and the description that a job is given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tsc_engine.local_paths import LocalPath
from tsc_engine.options import Count, Options
from tsc_engine.sizes import Sizes, increasing

Task = Literal["article_probe", "classification", "perplexity"]
Sampler = Literal["iid", "without_replacement"]

_NAME = r"^[a-z][a-z0-9_]{0,63}$"
#: Articles of a probe, and training passages of each, where a study does not say.
ARTICLES, TRAINING_PASSAGES = 12, 8
#: The keys that a task needs, and those that it may have; the others are faults.
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "article_probe": (("text",), ("articles", "training_passages", "keep_special")),
    "classification": (("dataset",), ("keep_special",)),
    "perplexity": (("text",), ()),
}
_TASK_KEYS = ("text", "dataset", "articles", "training_passages", "keep_special")


class LabelledDataset(Options):
    """A labelled data set of the Hugging Face hub, or a local folder in one of its forms."""

    id: LocalPath = Field(
        description="owner/name on the hub, or a local folder",
    )
    revision: str = Field(
        min_length=1,
        description="commit, tag or branch; only a commit pins the rows (of a folder: any word)",
    )
    config: str | None = Field(None, min_length=1, description="configuration of the data set")
    split: str = Field("test", min_length=1, description="split of the data set")
    text_field: str = Field("text", min_length=1, description="column of the text")
    label_field: str = Field("label", min_length=1, description="column of the label")

    def description(self, folder: Path) -> dict[str, Any]:
        """Return the JSON description that a job is given.

        Parameters
        ----------
        folder : Path
            Folder that a local data set's path is relative to; a job reads it relative to its
            working folder.

        Returns
        -------
        dict
            Without None; of a local folder with the sha256 of its files.

        Raises
        ------
        ValueError
            The id is none, or the local folder holds no file, or one that cannot be read.
        """
        from tsc_engine.texts.checksums import files_sha256
        from tsc_engine.texts.documents import SourceUnavailable
        from tsc_engine.texts.hub_dataset import fault_of_id, local_files

        message = fault_of_id(self.id, folder)
        if message is not None:
            raise ValueError(f"dataset.id: {message}")
        found = self.model_dump(mode="json", exclude_none=True)
        if (folder / self.id).is_dir():
            paths = local_files(folder / self.id)
            if not paths:
                raise ValueError(f"dataset.id: {self.id}, the folder holds no file")
            try:
                found["sha256"] = files_sha256(paths)
            except SourceUnavailable as error:
                raise ValueError(f"dataset.id: {error}") from error
        return found


class DownstreamOptions(Options):
    """One downstream experiment: a model whose layers attend to a sample of their keys."""

    experiment: str = Field(pattern=_NAME, description="name of the experiment")
    task: Task = Field(
        description=(
            "what is measured: article_probe (which article is a passage from), classification "
            "(a sequence-classification checkpoint on labelled texts), perplexity (a causal model)"
        )
    )
    model: str = Field(pattern=_NAME, description="name of an entry of `models`")
    text: str | None = Field(
        None, pattern=_NAME, description="name of an entry of `texts` (not of classification)"
    )
    dataset: LabelledDataset | None = Field(
        None, description="labelled texts (classification only)"
    )
    sizes: Sizes
    replicates: Count = Field(8, description="samples of each example at each size")
    sampler: Sampler = Field("iid", description="how keys are drawn")
    examples: Annotated[Count, Field(ge=2)] = Field(
        128, description="passages or labelled texts that are evaluated"
    )
    context: Count | None = Field(
        None,
        description=(
            "tokens of an input, special ones included; if not given, the model's positions"
        ),
    )
    articles: Annotated[Count, Field(ge=2)] | None = Field(
        None, description=f"of an article_probe: articles to tell apart ({ARTICLES} if not given)"
    )
    training_passages: Count | None = Field(
        None,
        description=(
            "of an article_probe: passages of each article that train the probe "
            f"({TRAINING_PASSAGES} if not given)"
        ),
    )
    keep_special: bool | None = Field(
        None,
        description=(
            "of an encoder: its special tokens are always among the keys, beside the sampled ones "
            "(true if not given)"
        ),
    )

    @model_validator(mode="after")
    def _checked(self) -> DownstreamOptions:
        needed, optional = _KEYS[self.task]
        for key in needed:
            if getattr(self, key) is None:
                raise ValueError(f"{key}: is needed by the task {self.task}")
        for key in _TASK_KEYS:
            if getattr(self, key) is not None and key not in (*needed, *optional):
                raise ValueError(f"{key}: is no key of the task {self.task}")
        increasing(self.sizes)
        largest, context = self.sizes[-1], self.context
        if self.sampler == "without_replacement" and context is not None and largest > context:
            raise ValueError(
                f"sizes: {largest} keys cannot be drawn without replacement from a context of "
                f"{context}"
            )
        if self.task == "article_probe":
            articles = self.articles or ARTICLES
            if self.examples < articles:
                raise ValueError(
                    f"examples: {self.examples}, at least one for each of {articles} articles is "
                    "needed"
                )
        return self

    def description(self) -> dict[str, Any]:
        """Return what a job is told: JSON types, only keys that have an effect, defaults filled.

        The names of the model, the text and the experiment are left out: their descriptions are
        beside this one in a job, and a name changes no number. So is the data set.
        """
        found: dict[str, Any] = {
            "task": self.task,
            "sizes": list(self.sizes),
            "replicates": self.replicates,
            "sampler": self.sampler,
            "examples": self.examples,
        }
        if self.context is not None:
            found["context"] = self.context
        if self.task == "article_probe":
            found["articles"] = self.articles or ARTICLES
            found["training_passages"] = self.training_passages or TRAINING_PASSAGES
        if self.task != "perplexity":
            found["keep_special"] = self.keep_special is not False
        return found
