/**
 * MiniMax M3's tool calls: XML in which a special token, `]<]minimax[>[`, precedes each tag, with values nested as
 * elements: `<invoke name="f"><a>text</a><l><item>1</item></l></invoke>`, all in one `<tool_call>`. The tool's schema
 * determines whether an element is a list, an object or a scalar, as in vLLM.
 * Sources: the model's chat template; vLLM's `parser/minimax_m3.py`; SGLang's `minimax_m3.py`.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { type BlockOptions, type BlockResult, createBlockFamily } from './block-parser.ts'
import { type ArgumentSchema, getTypes, readParameterSchemas, toJsonValue } from './text-arguments.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

const NAMESPACE = ']<]minimax[>['
const CLOSE = `${NAMESPACE}</invoke>`
const CLOSES = new MarkerSet([CLOSE])
const NAME_END = new MarkerSet(['">', CLOSE])
/** The maximum nesting depth, as in vLLM. */
const MAX_DEPTH = 128

export const minimaxM3 = createBlockFamily('minimax_m3', [NAMESPACE], {
  reasoning: { open: '<mm:think>', close: '</mm:think>' },
  call: {
    opens: [`${NAMESPACE}<invoke name="`],
    close: CLOSE,
    wrapper: { open: `${NAMESPACE}<tool_call>`, close: `${NAMESPACE}</tool_call>` },
    read: readCall,
  },
})

function* readCall(reader: TextReader, { tools }: BlockOptions): GrammarStep<BlockResult> {
  const { text: name, marker } = yield* reader.upTo(NAME_END)
  if (marker !== '">' || name.trim() === '') return 'malformed'
  const { text, marker: end } = yield* reader.upTo(CLOSES)
  const elements = end === undefined ? undefined : parseElements(text)
  if (elements === undefined) return 'malformed'
  const properties = readParameterSchemas(name, tools)
  return [{ name, arguments: toJsonObject(elements, { properties }) }]
}

/** An XML element. */
interface Element {
  name: string
  /** The text outside of its children. */
  text: string
  children: Element[]
}

/** Parses elements. Returns undefined if the text contains anything but elements and white space. */
function parseElements(text: string): Element[] | undefined {
  const root: Element = { name: '', text: '', children: [] }
  const open = [root]
  const [before = '', ...tags] = text.split(NAMESPACE)
  root.text = before
  for (const tag of tags) {
    const parts = /^<(\/?)([^<>]*)>([\s\S]*)$/.exec(tag)
    const [, slash, name = '', textAfter = ''] = parts ?? []
    if (name.trim() === '') return undefined
    if (slash === '') {
      const element = { name, text: '', children: [] }
      open.at(-1)!.children.push(element)
      if (open.push(element) > MAX_DEPTH) return undefined
    } else if (open.length === 1 || open.pop()!.name !== name) {
      return undefined
    }
    open.at(-1)!.text += textAfter
  }
  return open.length === 1 && root.text.trim() === '' ? root.children : undefined
}

function toJson({ text, children }: Element, schema: unknown): string {
  const container = findContainer(schema)
  if (children.length === 0) {
    const types = getTypes(schema)
    // The template writes an empty list or object as an empty element.
    const isEmpty = container !== undefined && !types.includes('string') && text.trim() === ''
    if (isEmpty) return container.kind === 'array' ? '[]' : '{}'
    return toJsonValue(text, types)
  }
  // Without a schema, an element whose children are all named `item` is a list, as the template writes it and SGLang
  // reads it.
  const areItems = children.every(({ name }) => name === 'item')
  if (container?.kind === 'array' || (areItems && getTypes(schema).length === 0)) {
    return `[${children.map((child) => toJson(child, container?.schema.items)).join(', ')}]`
  }
  return toJsonObject(addTextBeside(text, children), container?.schema ?? {})
}

/** Adds the text between elements as another element with an unused name, as vLLM does. */
function addTextBeside(text: string, children: Element[]): Element[] {
  if (text.trim() === '') return children
  let name = '$text'
  while (children.some((child) => child.name === name)) name = `$${name}`
  return [...children, { name, text, children: [] }]
}

/** Converts elements to a JSON object. Several elements with the same name become a list. */
function toJsonObject(
  elements: readonly Element[],
  { properties = {}, additionalProperties }: ArgumentSchema,
): string {
  const members = [...Map.groupBy(elements, ({ name }) => name)].map(([name, all]) => {
    const schema = Object.hasOwn(properties, name) ? properties[name] : additionalProperties
    const values = all.map((element) => toJson(element, schema))
    return `${JSON.stringify(name)}: ${values.length === 1 ? values[0] : `[${values.join(', ')}]`}`
  })
  return `{${members.join(', ')}}`
}

/** Returns the first list or object that a schema allows. */
function findContainer(schema: unknown): { kind: 'array' | 'object'; schema: ArgumentSchema } | undefined {
  if (typeof schema !== 'object' || schema === null) return undefined
  const own = schema as ArgumentSchema
  const types = [own.type ?? []].flat()
  for (const kind of ['array', 'object'] as const) if (types.includes(kind)) return { kind, schema: own }
  if (own.type === undefined && own.items !== undefined) return { kind: 'array', schema: own }
  if (own.type === undefined && (own.properties ?? own.additionalProperties) !== undefined) {
    return { kind: 'object', schema: own }
  }
  for (const choice of [own.anyOf ?? [], own.oneOf ?? []].flat()) {
    const found = findContainer(choice)
    if (found !== undefined) return found
  }
  return undefined
}
