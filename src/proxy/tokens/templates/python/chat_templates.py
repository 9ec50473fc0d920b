"""Renders chat templates with Jinja2 on CPython, configured as in transformers.

The configuration is that of `transformers/utils/chat_template_utils.py` (5.24): a sandbox whose values cannot be
changed, trimmed blocks, loop controls, generation blocks, a `tojson` that escapes nothing, and no attributes with an
underscore on namespaces. A test renders every known family's template with transformers itself and compares.

Functions that JavaScript calls receive and return only text, so that numbers and the order of keys stay those of the
received JSON.
"""

import functools
import gc
import json
from copy import copy
from datetime import datetime

from jinja2 import TemplateError, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from harmony import HarmonyTemplate
from specialize import CLOCK, Opaque, Slot, Tracing, Unspecializable, put_slots, to_specialization
from template_messages import Damaged, Unsupported, find_needs, to_template_messages
from template_words import find_words


class GenerationBlocks(Extension):
    """The extension for `{% generation %}`, which marks sampled text for training and renders its content in a separate
    scope."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _inside(self, context, caller):
        return caller()


class GuardedNamespace(Namespace):
    """`namespace` for templates: rejects attributes that begin with an underscore."""

    def __init__(*args, **kwargs):
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            reject_underscore(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        reject_underscore(name)
        Namespace.__setitem__(self, name, value)


def reject_underscore(name):
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have an attribute {name!r}")


class GuardedDict:
    """`dict` for templates: creates dictionaries, but provides no access to the type."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message):
    raise TemplateError(message)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox with a cache. Jinja2 checks at each access whether a template may read an attribute, which takes
    most of the rendering time. The result, which is cached, depends only on the object's type and the attribute's
    name."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.known_safe = {}

    def is_safe_attribute(self, obj, attr, value):
        key = (type(obj), attr)
        known = self.known_safe.get(key)
        if known is None:
            if len(self.known_safe) >= MAX_KNOWN_SAFE:
                self.known_safe.clear()
            known = self.known_safe[key] = super().is_safe_attribute(obj, attr, value)
        return known

    def getattr(self, obj, attribute):
        # Jinja2 looks up attributes before fields, which is slow and needless for a name that no attribute of `dict`
        # has.
        if type(obj) is dict and attribute not in DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


class TracingSandbox(Tracing, Sandbox):
    """A sandbox that renders a template with opaque values in place of contents."""


# The cache size: a template may generate any number of names.
MAX_KNOWN_SAFE = 4096

DICT_ATTRIBUTES = frozenset(dir(dict))


class ChatTemplate:
    """A compiled template, its needs, and the words that it searches for."""

    def __init__(self, source, special_tokens):
        self.now = None
        self.source = source
        self.special_tokens = special_tokens
        environment = self.create_environment(Sandbox, self.strftime_now)
        self.template = environment.from_string(source)
        syntax_tree = environment.parse(source)
        self.needs = find_needs(syntax_tree, self.try_to_render)
        self.words = find_words(syntax_tree)

    def create_environment(self, sandbox, strftime_now):
        environment = sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
        )
        environment.filters["tojson"] = tojson
        environment.globals.update(
            raise_exception=raise_exception,
            strftime_now=strftime_now,
            dict=GuardedDict(),
            namespace=GuardedNamespace,
        )
        return environment

    def create_tracing(self):
        """Returns a copy of this template that renders opaque contents. The date is opaque as well, but no condition
        may depend on it."""
        traced = copy(self)
        traced.conditions = {}
        date = lambda format: Opaque([Slot(CLOCK, (), traced.strftime_now(format))], traced.conditions)
        traced.template = self.create_environment(TracingSandbox, date).from_string(self.source)
        return traced

    def strftime_now(self, format):
        return (self.now or datetime.now()).strftime(format)

    def prepare(self, messages):
        return to_template_messages(messages, self.needs)

    def render(self, messages, tools, documents, add_generation_prompt, kwargs):
        # A request's variables may override special tokens, but not messages, tools and the other fields of the
        # request.
        variables = {**self.special_tokens, **kwargs}
        variables.update(
            messages=messages, tools=tools, documents=documents, add_generation_prompt=add_generation_prompt
        )
        return self.template.render(**variables)

    def try_to_render(self, messages):
        """Renders messages for `find_needs`. Returns an empty text if the template fails."""
        try:
            return self.render(messages, None, None, False, {})
        except Exception:
            return ""


# The tag that is added to the text that the model continues, as in transformers. Its last space shows whether the
# template strips the text.
FINAL_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def tag_final_text(messages):
    """Adds `FINAL_TAG` to the last text of the final message."""
    final = messages[-1] if messages else {}
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + FINAL_TAG
        return
    texts = [part for part in content or [] if "text" in part]
    if not texts:
        raise TemplateError("the final message has no text to continue")
    texts[-1]["text"] += FINAL_TAG


def find_text_before_tag(text):
    """Returns the prompt up to the tag, stripped as the template strips the final text."""
    end = text.rfind(FINAL_TAG.strip())
    if end == -1:
        raise TemplateError("the final message, which is to be continued, is not in the prompt")
    return text[:end] if text.startswith(FINAL_TAG, end) else text[:end].rstrip()


def parse_if_text(value):
    return json.loads(value) if isinstance(value, str) else value


def parse_json(value):
    """Parses JSON from a `str` or from a JavaScript array of its bytes."""
    return json.loads(value if isinstance(value, str) else value.to_bytes())


def get_time(options):
    now = options.get("now_s")
    return None if now is None else datetime.fromtimestamp(now)


# The number of new objects after which Python collects cyclic garbage. Rendering creates no cyclic garbage, and
# frequent collections would take half of the time of a long rendering.
OBJECTS_BETWEEN_COLLECTIONS = 100_000


def open_template(source, special_tokens):
    """Compiles a template. `special_tokens` is a JSON object of texts by name, such as `bos_token`."""
    return freeze_objects(ChatTemplate(source, json.loads(special_tokens)))


def open_harmony():
    return freeze_objects(HarmonyTemplate())


def freeze_objects(template):
    """Excludes all existing objects from garbage collection, because they are used until the process ends."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    gc.freeze()
    return template


def get_needs(template):
    return json.dumps(template.needs._asdict())


def get_words(template):
    return json.dumps(template.words)


@functools.lru_cache(maxsize=4)
def get_tracing_template(template):
    return template.create_tracing()


TOO_MUCH_MEMORY = "it takes too much memory"


def serialize_reply(name, value):
    """Serializes an object with one field. Non-ASCII characters are not escaped, because prompts may be long."""
    return json.dumps({name: value}, ensure_ascii=False)


def specialize(template, messages, tools, options, paths):
    """Specializes a template. The arguments are those of `render`, of which `continue_final_message` is not supported,
    and the paths of the contents as JSON. Returns JSON: `{"specialization": …}`, `{"damaged": …}` as in `render`, or
    `{}` if the template cannot be specialized."""
    try:
        variables = json.loads(options)
        traced = get_tracing_template(template)
        traced.conditions = {}
        traced.now = get_time(variables)
        slotted = parse_json(messages)
        put_slots(slotted, json.loads(paths), traced.conditions)
        text = traced.render(
            traced.prepare(slotted),
            parse_json(tools),
            parse_if_text(variables.get("documents")),
            variables["add_generation_prompt"],
            parse_if_text(variables.get("kwargs")) or {},
        )
        return serialize_reply("specialization", to_specialization(text, traced.conditions))
    except MemoryError:
        return serialize_reply("damaged", TOO_MUCH_MEMORY)
    except (Exception, Unspecializable):
        return "{}"


def render(template, messages, tools, options):
    """Renders a prompt. All arguments except the template are JSON; `messages` and `tools` may be its bytes. Returns
    JSON of an object with one field: `text`, the prompt; `refusal`, the template's error message; `unsupported`, the
    type and path of a content part that the template cannot receive; or `damaged`, the reason why this interpreter must
    be replaced."""
    try:
        variables = json.loads(options)
        template.now = get_time(variables)
        prepared = template.prepare(parse_json(messages))
        continues = variables.get("continue_final_message", False)
        if continues:
            tag_final_text(prepared)
        text = template.render(
            prepared,
            parse_json(tools),
            parse_if_text(variables.get("documents")),
            variables["add_generation_prompt"],
            parse_if_text(variables.get("kwargs")) or {},
        )
        return serialize_reply("text", find_text_before_tag(text) if continues else text)
    except Unsupported as refusal:
        kind, path = refusal.args
        return serialize_reply("unsupported", {"type": kind, "path": path})
    except Damaged as damage:
        return serialize_reply("damaged", str(damage))
    except MemoryError:
        return serialize_reply("damaged", TOO_MUCH_MEMORY)
    except Exception as error:
        return serialize_reply("refusal", str(error) or type(error).__name__)
