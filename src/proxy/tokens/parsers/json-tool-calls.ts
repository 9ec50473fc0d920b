/**
 * Parses tool calls that are written as JSON objects.
 *
 * A closing marker inside a JSON string is part of the string. If the string turns out to be invalid, the block is
 * `misread`: it ends at that marker, and the text after it is read again. The time stays linear: in the second reading,
 * strings can begin only at the quotes that ended strings in the first one, so text that was inside a string is now
 * outside. The next marker in it is therefore not in a string, and ends the reading.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import type { BlockResult, Markers, ToolCallSyntax } from './block-parser.ts'
import { JsonScanner, SCALAR } from './json-scanner.ts'
import type { OutputToolCall } from './output-delta.ts'
import { type GrammarStep, RunScanner, type TextReader } from './text-reader.ts'

/** A JSON object as written. */
interface ObjectText {
  text: string
  /** The texts of the values by key. */
  members: ReadonlyMap<string, string>
}

/**
 * Skips white space and reads a JSON object. Returns undefined if the text does not continue with one.
 * @param begun the beginning of the object, if it has already been read
 */
export function* readObject(reader: TextReader, begun = ''): GrammarStep<ObjectText | undefined> {
  if (begun === '') {
    yield* reader.space()
    if ((yield* reader.peek()) !== '{') return undefined
  }
  const scanner = new JsonScanner()
  scanner.read(begun, 0)
  const text = begun + (yield* reader.scan(scanner))
  return scanner.isComplete ? { text, members: scanner.getMembers(text) } : undefined
}

/** The keys of a tool call in a family's format. */
export interface ToolCallKeys {
  name: string
  /** The possible keys of the arguments; the first one that is present is used. */
  arguments: readonly string[]
  /**
   * The key of the id. `null`: the model's ids are not passed to the agent, for example because they count from 0 in
   * each turn. Default: `id`.
   */
  id?: string | null
  /**
   * Converts the JSON of arguments that are not an object. Returns undefined, as is the default, if the call is
   * malformed.
   */
  toArguments?: (json: string) => string | undefined
}

/** Returns the JSON of arguments unchanged, as most of vLLM's parsers do for arguments that are not an object. */
export function keepJson(json: string): string {
  return json
}

/** Returns the value of a JSON string, because arguments may be encoded twice; returns other JSON unchanged. */
export function decodeString(json: string): string {
  return parseString(json) ?? json
}

/** Returns the syntax of one tool call between two markers: an object with a name and arguments. */
export function createObjectSyntax(open: string, close: string, keys: ToolCallKeys): ToolCallSyntax {
  return {
    opens: [open],
    close,
    *read(reader) {
      const object = yield* readObject(reader)
      const isClosed = object !== undefined && (yield* endsBlock(reader, close))
      return isClosed ? (readNamedCall(object.members, keys) ?? 'malformed') : 'misread'
    },
  }
}

/**
 * Returns the syntax of an array of tool calls, or a single one, between two markers. The closing marker is optional,
 * because the JSON shows where it ends.
 */
export function createArraySyntax(
  opens: readonly string[],
  close: string,
  keys: ToolCallKeys,
): ToolCallSyntax {
  return {
    opens,
    close,
    *read(reader) {
      const calls = yield* readNamedCalls(reader, keys)
      yield* reader.space()
      yield* reader.literal(close)
      return calls
    },
  }
}

/** Returns the syntax of a sequence of tool calls without separators, between two markers. */
export function createSequenceSyntax(open: string, close: string, keys: ToolCallKeys): ToolCallSyntax {
  return {
    opens: [open],
    close,
    *read(reader) {
      const toCall: ToolCallConverter = (members) => readNamedCall(members, keys)
      return yield* readObjects(reader, toCall, function* () {
        return !(yield* endsBlock(reader, close))
      })
    },
  }
}

/**
 * Returns the syntax of tool calls whose name, and possibly id, precede the JSON of their arguments.
 * @param headEnds the markers after the id, if there is one, and after the name
 * @param options the other markers, and whether arguments may be JSON of any type
 * @param getHead returns id and name for the texts before the markers in `headEnds`, or undefined if they describe no
 *   tool call; default: the texts are id and name
 */
export function createHeaderSyntax(
  open: string,
  headEnds: readonly string[],
  { acceptsAnyJson = false, ...markers }: { close: string; wrapper?: Markers; acceptsAnyJson?: boolean },
  getHead: (heads: readonly string[]) => ToolCallHead | undefined = createBareHead,
): ToolCallSyntax {
  const { close } = markers
  const ends = headEnds.map((end) => new MarkerSet([end, close]))
  return {
    ...markers,
    opens: [open],
    *read(reader) {
      const heads: string[] = []
      for (const [index, end] of ends.entries()) {
        const { text, marker } = yield* reader.upTo(end)
        if (marker !== headEnds[index]) return 'malformed'
        heads.push(text.trim())
      }
      const head = getHead(heads)
      if (head === undefined) return 'malformed'
      const reading = yield* (acceptsAnyJson ? readJsonArguments : readArguments)(reader, head)
      if (!Array.isArray(reading)) return reading
      return (yield* endsBlock(reader, close)) ? reading : 'misread'
    },
  }
}

/** A tool call without arguments. */
type ToolCallHead = Omit<OutputToolCall, 'arguments'>

function createBareHead(heads: readonly string[]): ToolCallHead {
  const [name = '', id] = heads.toReversed()
  return { ...(id && { id }), name }
}

/** Reads a JSON array of tool calls, or a single one. */
export function* readNamedCalls(reader: TextReader, keys: ToolCallKeys): GrammarStep<BlockResult> {
  const toCall: ToolCallConverter = (members) => readNamedCall(members, keys)
  yield* reader.space()
  if (yield* reader.literal('[')) return yield* readArray(reader, toCall)
  const object = yield* readObject(reader)
  return object === undefined ? 'misread' : (toCall(object.members) ?? 'malformed')
}

/** Returns the tool calls that the members of an object describe; undefined if they describe none. */
type ToolCallConverter = (members: ReadonlyMap<string, string>) => OutputToolCall[] | undefined

/** Reads the objects of an array, whose opening bracket has been read, and the closing bracket. */
export function* readArray(reader: TextReader, toCall: ToolCallConverter): GrammarStep<BlockResult> {
  const reading = yield* readObjects(reader, toCall, function* () {
    yield* reader.space()
    return yield* reader.literal(',')
  })
  return reading === 'misread' || (yield* reader.literal(']')) ? reading : 'misread'
}

/**
 * Reads one or more objects.
 * @param hasNext reads the separator, and returns whether another object follows
 */
function* readObjects(
  reader: TextReader,
  toCall: ToolCallConverter,
  hasNext: () => GrammarStep<boolean>,
): GrammarStep<BlockResult> {
  const calls: OutputToolCall[] = []
  let isCalls = true
  do {
    const object = yield* readObject(reader)
    if (object === undefined) return 'misread'
    const call = toCall(object.members)
    if (call === undefined) isCalls = false
    else calls.push(...call)
  } while (yield* hasNext())
  return isCalls ? calls : 'malformed'
}

/** Reads the arguments of a tool call, an object. */
export function* readArguments(reader: TextReader, call: ToolCallHead): GrammarStep<BlockResult> {
  const object = yield* readObject(reader)
  if (object === undefined) return 'misread'
  return call.name === '' ? 'malformed' : [{ ...call, arguments: object.text }]
}

/**
 * Reads the arguments of a tool call, of any JSON type, as vLLM does. It is suitable only for blocks that end with a
 * closing marker.
 */
export function* readJsonArguments(reader: TextReader, call: ToolCallHead): GrammarStep<BlockResult> {
  const json = yield* readJson(reader)
  if (json === undefined) return 'misread'
  return call.name === '' ? 'malformed' : [{ ...call, arguments: json }]
}

/** Skips white space and reads a JSON value. Returns undefined if the text does not continue with one. */
function* readJson(reader: TextReader): GrammarStep<string | undefined> {
  yield* reader.space()
  if (startsJson(yield* reader.peek())) {
    const scanner = new JsonScanner()
    const text = yield* reader.scan(scanner)
    return scanner.isComplete ? text : undefined
  }
  const scalar = yield* reader.scan(new RunScanner(/[-+.\w]*/y))
  return SCALAR.test(scalar) ? scalar : undefined
}

/** Returns whether an object, a list or a string begins with this character. */
export function startsJson(character: string): boolean {
  return character !== '' && '{["'.includes(character)
}

/**
 * Skips white space and reads the end of a block: its closing marker, or the end of the text.
 * @returns whether it is there
 */
export function* endsBlock(reader: TextReader, close: string): GrammarStep<boolean> {
  yield* reader.space()
  return (yield* reader.literal(close)) || (yield* reader.atEnd())
}

/** Converts the members of an object to a tool call; undefined if they describe none. */
export function readNamedCall(
  members: ReadonlyMap<string, string>,
  keys: ToolCallKeys,
): OutputToolCall[] | undefined {
  const name = parseString(members.get(keys.name))
  const written = keys.arguments.map((key) => members.get(key)).find((value) => value !== undefined)
  if (name === undefined || name === '' || written === undefined) return undefined
  const args = written.startsWith('{') ? written : keys.toArguments?.(written)
  if (args === undefined) return undefined
  const id = keys.id === null ? undefined : parseString(members.get(keys.id ?? 'id'))
  return [{ ...(id && { id }), name, arguments: args }]
}

function parseString(json: string | undefined): string | undefined {
  return json?.startsWith('"') ? (JSON.parse(json) as string) : undefined
}
