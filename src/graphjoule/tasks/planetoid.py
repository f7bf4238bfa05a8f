"""Cora, CiteSeer and PubMed, the citation networks of Yang et al. (2016), in the raw files that PyG downloads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.tasks.objective import Classification
from graphjoule.tasks.pickles import unpickle_arrays
from graphjoule.tasks.raw import RawFiles
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import Task, pack_features

_NUM_VAL = 500  # papers after those that train
# The files are pickles, which run code when they are read, so only these very bytes ever reach the unpickler.
_CORA_SHA256 = {
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
}
# Not taken from files at hand but from three public lists of them. The exclusive or of these, Cora's and PubMed's is
# f52b3d47f5993912d7509b51e8090b6807228c4ba8c7d906f946868005c61c18, which GraphMLDatasets.jl states for all 24 files.
_CITESEER_SHA256 = {
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
}
_PUBMED_SHA256 = {
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
}


def read_checked(expected: Mapping[str, str], folder: Path, shown: str) -> dict[str, bytes]:
    """The content of every file by name, refusing one that is not the one that was hashed.

    A file is read once, and what was hashed is what is returned: its path may name another file a moment later.

    Args:
        expected: SHA-256 of every file, by name.
        folder: where the files are.
        shown: how to call the folder in the sentence.
    """
    contents = {}
    for file, sha256 in expected.items():
        try:
            contents[file] = (folder / file).read_bytes()
        except OSError as error:
            raise GraphjouleError(f"The file {shown}/{file} cannot be read ({error.strerror}).") from error
        found = hashlib.sha256(contents[file]).hexdigest()
        if found != sha256:
            raise GraphjouleError(
                f"The file {shown}/{file} has SHA-256 {found}, expected {sha256}; it was not read, because it is a "
                "pickle and a changed one could run code."
            )
    return contents


def planetoid_files(name: str, sha256: Mapping[str, str]) -> RawFiles:
    """The eight raw files of a citation network.

    Args:
        name: the network's name as PyG spells it.
        sha256: SHA-256 of every file, by name.
    """
    return RawFiles(name.lower(), "Planetoid", name, files=tuple(sha256), check=partial(read_checked, sha256))


CORA = planetoid_files("Cora", _CORA_SHA256)
CITESEER = planetoid_files("CiteSeer", _CITESEER_SHA256)
PUBMED = planetoid_files("PubMed", _PUBMED_SHA256)


def load_planetoid(raw: RawFiles, root: Path) -> Task:
    """A citation network with its public split; words as stored, papers linked if either cites the other.

    The meaning is that of PyG's reader, which opens paths by itself and unpickles whatever it finds there, and so is
    not used; neither is the ``processed`` folder that its dataset class keeps beside the raw files, so the data root
    may be read-only. Papers that stand in the graph alone, 15 in CiteSeer, have no words and no label; PyG calls them
    class 0, here they are unlabelled.
    """
    folder = raw.ensure(root)
    contents: dict[str, bytes] = raw.check(folder, str(folder))
    prefix = f"ind.{raw.task}."
    test = np.array(contents[f"{prefix}test.index"].split(), dtype=np.int64)
    parts = ("tx", "allx", "y", "ty", "ally", "graph")
    tx, allx, y, ty, ally, cited = (
        unpickle_arrays(contents[prefix + part], f"{folder}/{prefix}{part}") for part in parts
    )
    # Test papers come last, in the order of test.index; a number that it leaves out is in no other file either.
    paper = np.concatenate([np.arange(len(ally)), test])
    num_papers = int(paper.max()) + 1
    words = sp.vstack([allx, tx], format="coo")
    words = sp.csr_matrix((words.data, (paper[words.row], words.col)), shape=(num_papers, words.shape[1]))
    labels = torch.full((num_papers,), -1)
    labels[paper] = torch.from_numpy(np.concatenate([ally, ty]).argmax(axis=1))
    links = [(source, target) for source, targets in cited.items() for target in targets]
    val = range(len(y), len(y) + _NUM_VAL)
    return Task(
        name=raw.task,
        features=pack_features(words),
        graph=Propagation.from_edge_index(torch.tensor(links).t(), num_nodes=num_papers, symmetrize=True),
        targets=labels,
        objective=Classification(ally.shape[1]),
        fixed_splits=(Split("public", None, torch.arange(len(y)), torch.tensor(val), torch.from_numpy(test)),),
        default_split="public",
    )
