/**
 * Structural tags for tool calls in a model's own markup. Source: xgrammar's `builtin_structural_tag.py` (0.2.8), which
 * vLLM and SGLang share, and for Hermes and MiniMax vLLM's `tool_parsers/structural_tag_registry.py` (0.32).
 */

import {
  createConstantFormat,
  createJsonSchemaFormat,
  createSequenceFormat,
  createTag,
  createTagList,
  createTriggeredTags,
  type SchemaStyle,
  type StructuralTagFormat,
} from './structural-tag.ts'
import type { FunctionTool, ToolCallRequest } from './tool-call-request.ts'

/** A function that creates the structural tag of a request. */
export type ToolCallFormat = (calls: ToolCallFormatInput) => StructuralTagFormat

/** The input of a {@link ToolCallFormat}. */
export interface ToolCallFormatInput extends Omit<ToolCallRequest, 'format'> {
  /** Returns the schema that a tool's arguments must match; true: any value. */
  getSchema(tool: FunctionTool): unknown
}

const THINK = ['<think>', '</think>']

/** The format of Qwen3-Coder, Qwen3.5 and similar models. */
export const qwen3Coder = createFreeStandingFormat({
  trigger: '<tool_call>\n<function=',
  begin: (name) => `<tool_call>\n<function=${name}>\n`,
  end: '\n</function>\n</tool_call>',
  style: 'qwen_xml',
})

/** The format of MiMo V2. */
export const mimo = createFreeStandingFormat({
  trigger: '<tool_call>',
  begin: (name) => `<tool_call><function=${name}>`,
  end: '</function></tool_call>',
  style: 'qwen_xml',
  excludes: [...THINK, '</tool_call>', '<function='],
})

export const llama3 = createFreeStandingFormat({
  trigger: '{"name": ',
  begin: (name) => `{"name": "${name}", "parameters": `,
  end: '}',
  style: 'json',
})

/** The format of Hermes: a JSON object between markers, with or without newlines between them. */
export const hermes: ToolCallFormat = ({ tools, choice, onlyOne, getSchema }) => {
  const tags = tools.flatMap((tool) => {
    const begin = `{"name": "${tool.name}", "arguments": `
    const content = createJsonSchemaFormat(getSchema(tool))
    return [
      createTag(`<tool_call>\n${begin}`, content, '}\n</tool_call>'),
      createTag(`<tool_call>${begin}`, content, '}</tool_call>'),
    ]
  })
  if (choice === 'auto') return createTriggeredTags('<tool_call>', tags, { onlyOne })
  return createTagList(tags, onlyOne || choice === 'forced')
}

/** The format of DeepSeek V3 and R1. */
export const deepseekV3 = wrapMarkup({
  open: '<｜tool▁calls▁begin｜>',
  close: '<｜tool▁calls▁end｜>',
  separator: '\n',
  begin: (name) => `<｜tool▁call▁begin｜>function<｜tool▁sep｜>${name}\n\`\`\`json\n`,
  end: '\n```<｜tool▁call▁end｜>',
})

export const deepseekV31 = wrapMarkup({
  open: '<｜tool▁calls▁begin｜>',
  close: '<｜tool▁calls▁end｜>',
  separator: '',
  begin: (name) => `<｜tool▁call▁begin｜>${name}<｜tool▁sep｜>`,
  end: '<｜tool▁call▁end｜>',
})

export const deepseekV32 = createSectionedFormat({
  trigger: '<｜DSML｜function_calls>',
  open: '<｜DSML｜function_calls>\n',
  lead: '\n\n',
  close: '</｜DSML｜function_calls>',
  call: ({ name }, schema) =>
    createTag(
      `<｜DSML｜invoke name="${name}">\n`,
      createJsonSchemaFormat(schema, 'deepseek_xml'),
      '</｜DSML｜invoke>\n',
    ),
})

export const minimaxM2 = createSectionedFormat({
  trigger: '<minimax:tool_call>',
  open: '<minimax:tool_call>\n',
  lead: '\n',
  close: '</minimax:tool_call>',
  listsForced: true,
  call: ({ name }, schema) =>
    createTag(`<invoke name="${name}">\n`, createJsonSchemaFormat(schema, 'minimax_xml'), '</invoke>\n'),
})

export const kimiK2 = createSectionedFormat({
  trigger: '<|tool_calls_section_begin|>',
  open: '<|tool_calls_section_begin|>',
  lead: '',
  close: '<|tool_calls_section_end|>',
  excludes: [...THINK, '<|tool_call_begin|>'],
  call: ({ name }, schema) =>
    createTag(
      `<|tool_call_begin|>functions.${name}:`,
      createSequenceFormat(
        { type: 'regex', pattern: '\\d+' },
        createConstantFormat('<|tool_call_argument_begin|>'),
        createJsonSchemaFormat(schema),
      ),
      '<|tool_call_end|>',
    ),
})

/** Creates a format in which tool calls are independent of each other. */
function createFreeStandingFormat(markup: {
  trigger: string
  begin(name: string): string
  end: string
  style: SchemaStyle
  excludes?: string[]
}): ToolCallFormat {
  return ({ tools, choice, onlyOne, getSchema }) => {
    const tags = tools.map((tool) =>
      createTag(markup.begin(tool.name), createJsonSchemaFormat(getSchema(tool), markup.style), markup.end),
    )
    if (choice === 'forced') return tags[0]!
    const more = { onlyOne, atLeastOne: choice === 'required', excludes: markup.excludes ?? THINK }
    return createTriggeredTags(markup.trigger, tags, more)
  }
}

/**
 * Creates a format in which one pair of markers encloses all tool calls. The tag of a forced tool call includes the
 * markers.
 */
function wrapMarkup(markup: {
  open: string
  close: string
  separator: string
  begin(name: string): string
  end: string
}): ToolCallFormat {
  const { open, close } = markup
  return ({ tools, choice, onlyOne, getSchema }) => {
    const callTag = (tool: FunctionTool, before = '', after = '') =>
      createTag(before + markup.begin(tool.name), createJsonSchemaFormat(getSchema(tool)), markup.end + after)
    if (choice === 'forced') return callTag(tools[0]!, open, close)
    const calls = createTagList(
      tools.map((tool) => callTag(tool)),
      onlyOne,
      markup.separator,
    )
    const section = createTag(open, calls, close)
    return choice === 'required'
      ? section
      : createTriggeredTags(open, [section], { onlyOne, excludes: THINK })
  }
}

/** Creates a format like {@link wrapMarkup}, except that a section of forced or required tool calls is a sequence. */
function createSectionedFormat(markup: {
  trigger: string
  open: string
  /** The text before a section of forced or required tool calls. */
  lead: string
  close: string
  excludes?: readonly string[]
  /** Whether a forced tool call is a list of one tag. */
  listsForced?: boolean
  call(tool: FunctionTool, schema: unknown): StructuralTagFormat
}): ToolCallFormat {
  const { trigger, open, lead, close, excludes = THINK } = markup
  return ({ tools, choice, onlyOne, getSchema }) => {
    const tags = tools.map((tool) => markup.call(tool, getSchema(tool)))
    const isForced = choice === 'forced'
    const calls = isForced && !markup.listsForced ? tags[0]! : createTagList(tags, onlyOne || isForced)
    if (choice !== 'auto')
      return createSequenceFormat(createConstantFormat(lead + open), calls, createConstantFormat(close))
    return createTriggeredTags(trigger, [createTag(open, calls, close)], { onlyOne, excludes })
  }
}
