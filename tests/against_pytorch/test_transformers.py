"""Hugging Face's transformers, tokenizers, safetensors and OpenAI's tiktoken as oracles."""

import json

import numpy as np
import pytest

from minipar.data import ByteBPE, CharacterVocabulary, Markers
from minipar.data.byte_bpe import BYTE_OF, END_OF_TEXT
from minipar.interop import load_pretrained, open_safetensors, save_pretrained, write_safetensors
from minipar.nn import GPT, GPTConfig, RopeConfig
from minipar.number_formats import BFLOAT16
from tests.data.test_byte_bpe import DATA, EXPECTED, TOKENIZER

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers, tiktoken = pytest.importorskip("tokenizers"), pytest.importorskip("tiktoken")
safetensors = pytest.importorskip("safetensors.numpy")

IDS = np.random.default_rng(0).integers(0, 96, (2, 20))
SIZES = {"vocab_size": 96, "bos_token_id": None, "eos_token_id": None}
GPT2 = {**SIZES, "n_positions": 32, "n_embd": 24, "n_layer": 3, "n_head": 4}
LLAMA = {**SIZES, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
THETA = {"rope_theta": 100.0}
SCALED = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, **THETA}
THEIRS = {
    "gpt2": lambda: transformers.GPT2Config(**GPT2),
    "gpt2 inner": lambda: transformers.GPT2Config(**GPT2, n_inner=40, layer_norm_epsilon=1e-3),
    "gpt2 untied": lambda: transformers.GPT2Config(**GPT2, tie_word_embeddings=False),
    "llama": lambda: transformers.LlamaConfig(**LLAMA, rms_norm_eps=1e-3),
    "llama tied": lambda: transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True, head_dim=8),
    "llama linear": lambda: transformers.LlamaConfig(
        **LLAMA, rope_parameters={"rope_type": "linear", "factor": 3.0, **THETA}),
    "llama llama3": lambda: transformers.LlamaConfig(**LLAMA, rope_parameters=SCALED)}
KINDS = {"norm": "rms", "mlp": "swiglu", "bias": False}
OURS = {
    "gpt2": GPTConfig(96, 32, 3, 4, 24), "gpt2 inner": GPTConfig(96, 32, 2, 2, 24, mlp_width=40),
    "gpt2 untied": GPTConfig(96, 32, 2, 2, 24, tied=False, norm_epsilon=1e-3),
    "llama": GPTConfig(96, 32, 2, 4, 24, 2, rope=RopeConfig(500.0), **KINDS),
    "llama untied": GPTConfig(96, 32, 2, 4, 24, 1, tied=False, head_width=8, mlp_width=20,
                              rope=RopeConfig(100.0, "llama3", 4.0, 1.0, 4.0, 16), **KINDS),
    "llama linear": GPTConfig(96, 32, 2, 2, 24, rope=RopeConfig(100.0, "linear", 3.0), **KINDS)}
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# transformers computes norms, cos and sin of Llama in float32 also in a model of float64.
MOST = {"gpt2": 1e-12, "llama": 1e-5}


def logits_of(theirs):
    with torch.no_grad():
        return theirs(torch.from_numpy(IDS)).logits.numpy()


def randomize(model):
    """Numbers of the size 0.3 for all parameters, norms and biases too."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


@pytest.mark.parametrize("largest", [None, "20KB"])
@pytest.mark.parametrize("name", THEIRS)
def test_logits_of_their_models(tmp_path, name, largest):
    theirs = randomize(transformers.AutoModelForCausalLM.from_config(THEIRS[name]()))
    theirs.save_pretrained(tmp_path, **({"max_shard_size": largest} if largest else {}))
    assert (largest is None) == (tmp_path / "model.safetensors").exists()
    model = load_pretrained(tmp_path)[0]
    assert model.wte.weight.data.dtype == np.float64
    assert np.max(np.abs(model(IDS).data - logits_of(theirs))) < MOST[name.split()[0]]


@pytest.mark.parametrize("largest", [5 * 10**9, 20_000])
@pytest.mark.parametrize("name", OURS)
def test_logits_of_our_models(tmp_path, name, largest):
    ours = GPT(OURS[name]).initialize(3, np.float64)
    rng = np.random.default_rng(5)
    for parameter in ours.parameters():
        parameter.data[...] += 0.3 * rng.normal(size=parameter.shape)
    save_pretrained(tmp_path, ours, largest=largest)
    theirs, found = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float64, output_loading_info=True)
    assert not any(found.values()), found
    assert np.max(np.abs(logits_of(theirs.eval()) - ours(IDS).data)) < MOST[name.split()[0]]


def test_greedy_tokens_of_a_bf16_file(tmp_path):
    theirs = randomize(transformers.AutoModelForCausalLM.from_config(THEIRS["llama"]()))
    theirs.bfloat16().save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)[0]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    best = logits_of(theirs.eval()).argmax(-1)
    assert np.mean(ours(IDS).data.argmax(-1) == best) == 1


def random_texts(number=400):
    """Texts of characters of every kind, which known shortcuts cut otherwise."""
    rng = np.random.default_rng(7)
    ranges = [(32, 127), (0, 160), (160, 880), (0x2000, 0x2070), (0x2150, 0x2190),
              (0x3000, 0x3100), (0x4E00, 0x4F00), (0x1D7CE, 0x1D800), (0x1F600, 0x1F640)]
    texts = []
    for _ in range(number):
        picked = rng.integers(0, len(ranges), rng.integers(1, 30))
        texts.append("".join(chr(rng.integers(*ranges[i])) for i in picked))
    return [*texts, "it's they'LL I'm 's  \n\n x", " \u00a0 a", "a\x1cb", f"a{END_OF_TEXT}b"]


def test_ids_of_tokenizers_and_tiktoken():
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(
        str(DATA / "vocab.json"), str(DATA / "merges.txt")))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.add_special_tokens([END_OF_TEXT])
    special = TOKENIZER.tokens.index(END_OF_TEXT)
    ranks = {bytes(BYTE_OF[c] for c in token): i for i, token in enumerate(TOKENIZER.tokens)
             if i != special}
    fast = tiktoken.Encoding("gpt2-like", mergeable_ranks=ranks, special_tokens={
        END_OF_TEXT: special}, pat_str=PATTERN)
    for text in [*random_texts(), *(case["text"] for case in EXPECTED)]:
        ids = TOKENIZER.encode(text).tolist()
        assert ids == theirs.encode(text).ids, text
        assert ids == fast.encode(text, allowed_special="all"), text
        assert fast.decode(ids) == TOKENIZER.decode(ids) == text


def test_our_tokenizers_files_are_read_by_transformers(tmp_path):
    model = GPT(GPTConfig(400, 8, 1, 1, 8)).initialize()
    save_pretrained(tmp_path / "bpe", model, TOKENIZER)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "bpe")
    for text in random_texts(60):
        assert theirs(text)["input_ids"] == TOKENIZER.encode(text).tolist(), text
    characters = CharacterVocabulary.from_text("the ring\n é漢")
    model = GPT(GPTConfig(len(characters), 8, 1, 1, 8)).initialize()
    save_pretrained(tmp_path / "characters", model, characters)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "characters")
    text = "thé 漢\n ring"
    assert theirs(text)["input_ids"] == characters.encode(text).tolist()
    assert theirs.decode(characters.encode(text)) == text


def test_begin_and_end_tokens_are_read_by_transformers(tmp_path):
    tokens = ["<s>", "</s>", "<pad>", *TOKENIZER.tokens]
    markers = Markers(0, (1, 40), (50,), 2)
    ours = ByteBPE(tokens, TOKENIZER.merges, 410, ["<s>", "</s>", "<pad>"], markers, 0, True)
    save_pretrained(tmp_path, GPT(GPTConfig(410, 8, 1, 1, 8)).initialize(), ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token) == ("<s>", "</s>", "<pad>")
    for text in [*random_texts(60), "<s>a</s> b<pad>"]:
        assert theirs(text)["input_ids"] == ours.encode(text).tolist(), text
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, [1, 40], 2)
    generation = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert generation.eos_token_id == [1, 40, 50]


def test_what_transformers_writes_of_a_tokenizer_is_read(tmp_path):
    save_pretrained(tmp_path / "ours", GPT(GPTConfig(400, 8, 1, 1, 8)).initialize(), TOKENIZER)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "theirs" / name).write_bytes((tmp_path / "ours" / name).read_bytes())
    found = load_pretrained(tmp_path / "theirs")[1]
    assert isinstance(found, ByteBPE)
    for text in random_texts(60):
        assert found.encode(text).tolist() == TOKENIZER.encode(text).tolist()


def test_safetensors_files_of_both(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"{kind}": rng.integers(0, 2, (3, 5)).astype(kind)
              for kind in ("?", "u1", "i8", "f2", "f4", "f8", "u2", "u4", "i2")}
    arrays |= {"turned": rng.normal(size=(3, 5)).T, "none": np.empty((0, 2))}
    write_safetensors(tmp_path / "ours", arrays, metadata={"format": "pt"})
    found = safetensors.load_file(tmp_path / "ours")
    assert all(np.array_equal(found[name], array) and found[name].dtype == array.dtype
               for name, array in arrays.items())
    theirs = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    safetensors.save_file(theirs, tmp_path / "theirs")
    again = open_safetensors(tmp_path / "theirs")
    assert all(np.array_equal(again[name], array) for name, array in arrays.items())


def test_narrow_floats_of_both(tmp_path):
    from safetensors.torch import load_file, save_file
    x = torch.randn(5, 7)
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F8_E4M3": torch.float8_e4m3fn,
             "F8_E5M2": torch.float8_e5m2}
    save_file({name: x.to(kind) for name, kind in kinds.items()}, tmp_path / "theirs")
    found = open_safetensors(tmp_path / "theirs")
    for name, kind in kinds.items():
        assert np.array_equal(found[name], x.to(kind).float().numpy())
        write_safetensors(tmp_path / name, {"x": x.numpy()}, name)
        read = load_file(tmp_path / name)["x"]
        assert read.dtype == kind and torch.equal(read.float(), x.to(kind).float())
    assert np.array_equal(found["BF16"], BFLOAT16.round(x.numpy()))


def test_transformers_reads_every_entry_of_our_config(tmp_path):
    save_pretrained(tmp_path, GPT(OURS["llama untied"]).initialize())
    config = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    written = json.loads((tmp_path / "config.json").read_text())
    assert all(config[key] == value for key, value in written.items()
               if key in config and key not in ("torch_dtype", "rope_scaling"))
