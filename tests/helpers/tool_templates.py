"""Chat templates with tools, in the manner of published ones, for tests."""

QWEN = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}"
    "{{- 'You may call functions. Their signatures:\n<tools>' }}"
    "{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}"
    "{%- elif messages[0].role != 'system' %}{{- '<|im_start|>system\nYou are a helper.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- elif message.role == 'assistant' and message.tool_calls %}"
    "{{- '<|im_start|>assistant' }}{%- if message.content %}{{- '\n' + message.content }}{%- endif %}"
    "{%- for call in message.tool_calls %}{%- set call = call.function %}"
    '{{- \'\n<tool_call>\n{"name": "\' + call.name + \'", "arguments": \' }}'
    "{{- call.arguments | tojson + '}\n</tool_call>' }}"
    "{%- endfor %}{{- '<|im_end|>\n' }}"
    "{%- elif not (tools and loop.first and message.role == 'system') %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Calls between ``<tool_call>`` and ``</tool_call>``, several in a message."""

QWEN_THINKING = QWEN.replace(
    "{{- '<|im_start|>assistant\n' }}{%- endif %}",
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}"
    "{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}",
)
"""The same for a model that reasons first, unless ``enable_thinking`` is false."""

LLAMA3 = (
    "{{- bos_token }}{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + message.content | tojson + '<|eot_id|>' }}"
    "{%- elif 'tool_calls' in message and message.tool_calls %}"
    "{%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}"
    "{%- set call = message.tool_calls[0].function %}"
    '{{- \'<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "\' + call.name + \'", "parameters": \' }}'
    "{{- call.arguments | tojson + '}<|eot_id|>' }}"
    "{%- else %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{%- if tools and loop.first %}{{- 'Answer with a call of one of these:\n\n' }}"
    "{%- for tool in tools %}{{- tool | tojson(indent=4) + '\n\n' }}{%- endfor %}{%- endif %}"
    "{{- message['content'] | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
"""Calls as bare JSON, one in a message."""

GEMMA3 = (
    "{{ bos_token }}"
    "{%- if messages[0]['role'] == 'system' -%}"
    "{%- set preface = messages[0]['content'] + '\n\n' -%}{%- set turns = messages[1:] -%}"
    "{%- else -%}{%- set preface = '' -%}{%- set turns = messages -%}{%- endif -%}"
    "{%- for message in turns -%}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('user and assistant must take turns') }}{%- endif -%}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
    "{{ '<start_of_turn>' + role + '\n' + (preface if loop.first else '') }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- else -%}{%- for part in message['content'] -%}{{ part['text'] | trim }}{%- endfor -%}{%- endif -%}"
    "{{ '<end_of_turn>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
"""No tools; the system message stands in the user's first one, and turns must alternate."""

CHATML_MARKS = ("<|im_start|>", "<|im_end|>")
LLAMA3_MARKS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GEMMA3_MARKS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")


def chatml_with(
    calls, tools="{{- '<tools>' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '</tools>' }}"
):
    """A template in the manner of ChatML. ``calls`` writes its calls."""
    return (
        "{%- if tools %}{{- '<|im_start|>system\n' }}" + tools + "{{- '<|im_end|>\n' }}{%- endif %}"
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
        "{%- if message.tool_calls %}" + calls + "{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    )


_EACH = "{%- for call in message.tool_calls %}{%- set f = call.function %}"
QWEN_CODER = chatml_with(
    _EACH + "{{- '\n<tool_call>\n<function=' + f.name + '>\n' }}{%- for key, value in f.arguments | items %}"
    "{{- '<parameter=' + key + '>\n' }}"
    "{{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}"
    "{{- '\n</parameter>\n' }}{%- endfor %}{{- '</function>\n</tool_call>' }}{%- endfor %}"
)
"""Arguments one by one as XML, truth values as in Python (Qwen3-Coder, Qwen 3.5)."""

GLM = chatml_with(
    _EACH + "{{- '\n<tool_call>' + f.name + '\n' }}{%- for key, value in f.arguments | items %}"
    "{{- '<arg_key>' + key + '</arg_key>\n<arg_value>' + (value if value is string else value | tojson) }}"
    "{{- '</arg_value>\n' }}{%- endfor %}{{- '</tool_call>' }}{%- endfor %}"
)
"""Names and values of arguments in turn."""

GLM_DENSE = GLM.replace("f.name + '\n'", "f.name").replace("</arg_key>\n", "</arg_key>").replace("value>\n", "value>")
"""The same without line ends."""

MINICPM = chatml_with(
    _EACH + "{{- '\n' if message.content or not loop.first }}{{- '<function name=\"' + f.name + '\">' }}"
    "{%- for key, value in f.arguments | items %}{{- '<param name=\"' + key + '\">' + value | string + '</param>' }}"
    "{%- endfor %}{{- '</function>' }}{%- endfor %}"
)
"""Names in attributes."""

DEEPSEEK32 = chatml_with(
    "{{- '\n\n<｜DSML｜function_calls>\n' }}" + _EACH + "{{- '<｜DSML｜invoke name=\"' + f.name + '\">\n' }}"
    "{%- for key, value in f.arguments | items %}{{- '<｜DSML｜parameter name=\"' + key + '\" string=\"' }}"
    "{{- 'true\">' + value if value is string else 'false\">' + value | tojson }}{{- '</｜DSML｜parameter>\n' }}"
    "{%- endfor %}{{- '</｜DSML｜invoke>\n' }}{%- endfor %}{{- '</｜DSML｜function_calls>' }}"
)
"""Each argument says whether it is a text (DeepSeek V3.2, and with another name of the frame V4)."""

GEMMA4_TOOLS = (
    "{%- macro said(value) -%}{%- if value is string -%}{{- '<|\"|>' + value + '<|\"|>' -}}"
    "{%- elif value is boolean -%}{{- 'true' if value else 'false' -}}"
    "{%- elif value is none -%}{{- 'null' -}}{%- elif value is mapping -%}{{- '{' -}}"
    "{%- for key, each in value | dictsort -%}{{- ',' if not loop.first -}}"
    "{{- key + ':' + said(each) -}}{%- endfor -%}{{- '}' -}}"
    "{%- elif value is sequence -%}{{- '[' -}}{%- for each in value -%}{{- ',' if not loop.first -}}{{- said(each) -}}"
    "{%- endfor -%}{{- ']' -}}{%- else -%}{{- value -}}{%- endif -%}{%- endmacro -%}"
) + chatml_with(
    _EACH + "{{- '<|tool_call>call:' + f.name + '{' }}{%- for key, value in f.arguments | dictsort %}"
    "{{- ',' if not loop.first }}{{- key + ':' + said(value) }}{%- endfor %}{{- '}<tool_call|>' }}{%- endfor %}"
)
"""Control tokens around a call and around texts."""

KIMI = chatml_with(
    "{{- '<|tool_calls_section_begin|>' }}" + _EACH + "{{- '<|tool_call_begin|>functions.' + f.name + ':' }}"
    "{{- loop.index0 | string + '<|tool_call_argument_begin|>' + f.arguments | tojson + '<|tool_call_end|>' }}"
    "{%- endfor %}{{- '<|tool_calls_section_end|>' }}"
)
"""Calls that are numbered, between control tokens."""

LFM2 = chatml_with("", "{{- 'List of tools: [' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- ']' }}")
"""No calls: the assistant's content holds them."""

GRANITE3 = chatml_with(
    "", "{{- 'Answer with <|tool_call|> and a list.' }}{%- set available_tools = tools %}{{- tools | tojson }}"
)
"""The same, with a control token."""

SMOLLM3 = chatml_with(
    "", "{%- set xml_tools = tools %}{{- xml_tools | tojson + 'Answer with <tool_call>, as JSON, and </tool_call>.' }}"
)
"""The same, with the most common form."""

_MISTRAL_TURNS = (
    "{{- bos_token }}{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' %}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}"
    "{%- elif message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}"
    "{%- elif message.role == 'tool' %}RESULT"
    "{%- else %}{{- message.content or '' }}{%- if message.tool_calls %}CALLS{%- endif %}{{- eos_token }}{%- endif %}"
    "{%- endfor %}"
)
_NINE = "{%- if ID | length != 9 %}{{- raise_exception('ids have nine characters') }}{%- endif %}"
MISTRAL = _MISTRAL_TURNS.replace(
    "CALLS",
    "{%- for call in message.tool_calls %}{%- set f = call.function %}"
    "{{- '[TOOL_CALLS]' + f.name + '[ARGS]' + f.arguments | tojson }}{%- endfor %}",
).replace("RESULT", "{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}")
"""Each call behind a control token (Devstral, Ministral 3)."""

MISTRAL_ID = (
    _MISTRAL_TURNS.replace(
        "CALLS",
        "{%- for call in message.tool_calls %}{%- set f = call.function %}"
        + _NINE.replace("ID", "call.id")
        + "{{- '[TOOL_CALLS]' + f.name + '[CALL_ID]' + call.id + '[ARGS]' + f.arguments | tojson }}{%- endfor %}",
    )
).replace("RESULT", "{{- '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content }}")
"""The same with the call's id (Mistral Small 3.2)."""

MISTRAL_LIST = (
    _MISTRAL_TURNS.replace(
        "CALLS",
        "{{- '[TOOL_CALLS][' }}{%- for call in message.tool_calls %}{%- set f = call.function %}"
        + _NINE.replace("ID", "call.id")
        + '{{- \'{"name": "\' + f.name + \'", "arguments": \' + f.arguments | tojson + \', "id": "\' + call.id }}'
        "{{- '\"}' + (']' if loop.last else ', ') }}{%- endfor %}",
    )
).replace("RESULT", _NINE.replace("ID", "message.tool_call_id") + "{{- '[TOOL_RESULTS]' + message.content }}")
"""A list of calls with ids (Mistral 7B v0.3, Nemo)."""
MISTRAL_MARKS = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]"),
    *("[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]"),
)

_DEEPSEEK_TURNS = (
    "{{- bos_token }}{%- for message in messages %}"
    "{%- if message.role == 'system' %}{{- message.content }}"
    "{%- elif message.role == 'user' %}{{- '<｜User｜>' + message.content }}"
    "{%- elif message.role == 'tool' %}{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}"
    "{%- else %}"
    "{%- if message.tool_calls %}{{- '<｜Assistant｜>' }}CALLS{{- '<｜tool▁calls▁end｜>' + eos_token }}{%- endif %}"
    "MORE{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<｜Assistant｜>' }}{%- endif %}"
)
DEEPSEEK31 = _DEEPSEEK_TURNS.replace(
    "CALLS",
    "{{- message.content + '<｜tool▁calls▁begin｜>' }}{%- for call in message.tool_calls %}{%- set f = call.function %}"
    "{{- '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' + f.arguments | tojson + '<｜tool▁call▁end｜>' }}"
    "{%- endfor %}",
).replace("MORE", "{%- if not message.tool_calls %}{{- '<｜Assistant｜>' + message.content + eos_token }}{%- endif %}")
"""Calls and no list of tools (DeepSeek V3.1)."""

DEEPSEEK3 = _DEEPSEEK_TURNS.replace(
    "CALLS",
    "{{- '<｜tool▁calls▁begin｜>' }}{%- for call in message.tool_calls %}{%- set f = call.function %}"
    "{{- '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + f.name + '\n```json\n' + f.arguments | tojson }}"
    "{{- '\n```<｜tool▁call▁end｜>' + ('' if loop.last else '\n') }}{%- endfor %}",
).replace(
    "MORE", "{%- if message.content is not none %}{{- '<｜Assistant｜>' + message.content + eos_token }}{%- endif %}"
)
"""The same around blocks of JSON; an answer with calls and a text that is not null ends twice (DeepSeek V2.5 to R1)."""
DEEPSEEK_MARKS = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)

APERTUS = chatml_with(
    "{{- '<|tools_prefix|>[' }}" + _EACH + "{{- '{\"' + f.name + '\": ' + f.arguments | tojson + '}' }}"
    "{{- '' if loop.last else ', ' }}{%- endfor %}{{- ']<|tools_suffix|>' }}"
)
"""The name as the key of the arguments (Apertus)."""

HARMONY = (
    "{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}"
    "{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
    "{%- if tools or messages[0].role == 'system' %}{{- '<|start|>developer<|message|>' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}"
    "{%- for tool in tools or [] %}{%- set f = tool.function %}"
    "{{- '\n// ' + f.description + '\ntype ' + f.name + ' = (_: {' }}"
    "{%- for key, value in (f.parameters.properties or {}).items() %}"
    "{{- key + ', // ' + (value.default if value.enum and value.default is defined else '') }}{%- endfor %}"
    "{{- '}) => any' }}{%- endfor %}{{- '<|end|>' }}{%- endif %}"
    "{%- set called = namespace(name=none) %}{%- for message in turns %}"
    "{%- if message.role == 'user' %}{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}"
    "{%- elif message.role == 'tool' %}"
    "{%- if called.name is none %}{{- raise_exception('a result without a call') }}{%- endif %}"
    "{{- '<|start|>functions.' + called.name + ' to=assistant<|channel|>commentary<|message|>' }}"
    "{{- message.content | tojson + '<|end|>' }}"
    "{%- elif message.role == 'assistant' %}"
    "{%- if '<|channel|>final<|message|>' in message.content or '<|channel|>analysis<|message|>' in message.content %}"
    "{{- raise_exception('no channels in a content') }}{%- endif %}"
    "{%- if message.tool_calls %}{%- set f = message.tool_calls[0].function %}"
    "{%- if message.content and message.thinking %}{{- raise_exception('content or thinking') }}{%- endif %}"
    "{%- if message.thinking %}"
    "{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}"
    "{{- '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' }}"
    "{{- f.arguments | tojson + '<|call|>' }}{%- set called.name = f.name %}"
    "{%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}"
    "{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{%- endif %}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
"""Each message of a reply in a channel, one call in a turn (gpt-oss)."""
HARMONY_MARKS = (*("<|return|>", "<|call|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>"),)
