"""A chat template that writes tools, their calls and results, around one that does not.

The messages are changed first: tools become part of the system message, calls text of the assistant, and results text
of the user, all in the form in which a server describes them to such a model (``slm.serve.tools.call_form``). Then the
model's own template writes them, with its own marks.
"""

from collections.abc import Iterable

from slm.data.chat.template import Capability, ChatTemplate, TemplateRefusesError

_AROUND = """\
{%- set own = namespace(messages=[], listed='', text='', after_result=false) -%}
{%- if tools -%}
    {%- for tool in tools -%}{%- set own.listed = own.listed + (tool | tojson) + '\\n' -%}{%- endfor -%}
    {%- set own.listed = 'You can call these functions:\\n<tools>\\n' + own.listed + '</tools>\\n'
        + 'To call one, answer with <tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>' -%}
{%- endif -%}
{%- for message in messages -%}
    {%- set role = 'user' if message.role == 'tool' else message.role -%}
    {%- set own.text = message.content or '' -%}
    {%- if message.role == 'tool' -%}
        {%- set own.text = '<tool_response>\\n' + own.text + '\\n</tool_response>' -%}
    {%- endif -%}
    {%- for call in message.tool_calls or [] -%}
        {%- set called = call.function or call -%}
        {%- set arguments = called.arguments if called.arguments is string else called.arguments | tojson -%}
        {%- set own.text = own.text + ('\\n' if own.text else '') + '<tool_call>\\n{"name": ' + (called.name | tojson)
            + ', "arguments": ' + arguments + '}\\n</tool_call>' -%}
    {%- endfor -%}
    {%- if own.listed and loop.first and role == 'system' -%}
        {%- set own.text = own.text + '\\n\\n' + own.listed -%}
        {%- set own.listed = '' -%}
    {%- elif own.listed and loop.first and OWN_SYSTEM -%}
        {%- set own.messages = [{'role': 'system', 'content': own.listed}] -%}
        {%- set own.listed = '' -%}
    {%- elif own.listed and role == 'user' -%}
        {%- set own.text = own.listed + '\\n\\n' + own.text -%}
        {%- set own.listed = '' -%}
    {%- endif -%}
    {%- if role == 'user' and own.after_result -%}
        {%- set own.text = own.messages[-1].content + '\\n' + own.text -%}
        {%- set own.messages = own.messages[:-1] -%}
    {%- endif -%}
    {%- set own.after_result = role == 'user' and (message.role == 'tool' or own.after_result) -%}
    {%- set own.messages = own.messages + [{'role': role, 'content': own.text REASONING}] -%}
{%- endfor -%}
{%- set messages = own.messages -%}
{%- set tools = none %}
"""
_REASONING = ", 'reasoning_content': message.reasoning_content or ''"


def with_tools(template: ChatTemplate, uses: Iterable[Capability]) -> str:
    """The text of a template that writes ``uses``, around ``template``.

    Raises TemplateRefusesError where none can be made.
    """
    reasoning = _REASONING if "reasoning_content" in template.source else ""
    for system in ("true", "false"):
        text = _AROUND.replace("OWN_SYSTEM", system).replace(" REASONING", reasoning) + template.source
        if set(uses) <= template.with_source(text).writes:
            return text
    raise TemplateRefusesError("what it makes of tools, their calls and results as text is not in its own text")
