/**
 * Tool calls written as JSON objects.
 *
 * A closing marker inside a JSON string belongs to the string. If the string turns out to be invalid, the block is
 * `misread` and ends at that marker, and the text after it is read again. That stays linear: only the quotes that ended
 * the misread string can begin a string when the text is read again, and JSON that continues after them is outside of
 * strings where the first reading was inside, so it is invalid at the next marker.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import type { BlockResult, Markers, ToolCallSyntax } from './block-parser.ts'
import { JsonScanner, SCALAR } from './json-scanner.ts'
import type { OutputToolCall } from './output-delta.ts'
import { type GrammarStep, RunScanner, type TextReader } from './text-reader.ts'

interface ObjectText {
  text: string
  /** The keys and the texts of their values. */
  members: ReadonlyMap<string, string>
}

/**
 * Reads the JSON object that comes next and skips the space before it. Returns undefined if none comes next.
 * @param begun the beginning of the object, if it was read before
 */
export function* readObject(reader: TextReader, begun = ''): GrammarStep<ObjectText | undefined> {
  if (begun === '') {
    yield* reader.space()
    if ((yield* reader.peek()) !== '{') return undefined
  }
  const scanner = new JsonScanner()
  scanner.read(begun, 0)
  const text = begun + (yield* reader.scan(scanner))
  return scanner.isWhole ? { text, members: scanner.getMembers(text) } : undefined
}

/** The keys that a family uses for the parts of a tool call. */
export interface ToolCallKeys {
  name: string
  /** The keys of the arguments; the first one present is used. */
  arguments: readonly string[]
  /**
   * The key of the id. `null`: the model's ids are not passed to the agent, for example because each turn counts from
   * 0.
   */
  id?: string | null
  /** Converts the JSON of arguments that are not an object. Default: such a tool call is malformed. */
  toArguments?: (json: string) => string | undefined
}

/** Returns arguments that are not an object as their JSON, like most of vLLM's parsers. */
export function keepJson(json: string): string {
  return json
}

/** Returns a string as its text, which may be JSON that was encoded twice, and other arguments as their JSON. */
export function decodeString(json: string): string {
  return parseString(json) ?? json
}

/** Returns the syntax of an object with a name and an object of arguments between two markers. */
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
 * Returns the syntax of an array of such objects between two markers. The closing one is optional: the array has its
 * own end.
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

/** Returns the syntax of a sequence of such objects between two markers. */
export function createSequenceSyntax(open: string, close: string, keys: ToolCallKeys): ToolCallSyntax {
  return {
    opens: [open],
    close,
    *read(reader) {
      const toCall: ToolCallConverter = (members) => readNamedCall(members, keys)
      return yield* readRow(reader, toCall, function* () {
        return !(yield* endsBlock(reader, close))
      })
    },
  }
}

/**
 * Returns the syntax of tool calls whose id and name precede their JSON, each followed by a marker.
 * @param headEnds the markers after the id, if there is one, and after the name
 * @param markers with whether arguments may be JSON of any type
 * @param getHead converts the texts before these markers, if they are not just id and name; returns undefined if they
 *   describe no tool call
 */
export function createHeaderSyntax(
  open: string,
  headEnds: readonly string[],
  { takesAnyJson = false, ...markers }: { close: string; wrapper?: Markers; takesAnyJson?: boolean },
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
      const reading = yield* (takesAnyJson ? readJsonArguments : readArguments)(reader, head)
      if (!Array.isArray(reading)) return reading
      return (yield* endsBlock(reader, close)) ? reading : 'misread'
    },
  }
}

type ToolCallHead = Omit<OutputToolCall, 'arguments'>

function createBareHead(heads: readonly string[]): ToolCallHead {
  const [name = '', id] = heads.toReversed()
  return { ...(id && { id }), name }
}

/** Reads a JSON array of such objects, or a single one. */
export function* readNamedCalls(reader: TextReader, keys: ToolCallKeys): GrammarStep<BlockResult> {
  const toCall: ToolCallConverter = (members) => readNamedCall(members, keys)
  yield* reader.space()
  if (yield* reader.literal('[')) return yield* readArray(reader, toCall)
  const object = yield* readObject(reader)
  return object === undefined ? 'misread' : (toCall(object.members) ?? 'malformed')
}

/** Returns the tool call that the members of an object describe; undefined if they describe none. */
type ToolCallConverter = (members: ReadonlyMap<string, string>) => OutputToolCall[] | undefined

/** Reads an array's objects after its opening bracket, and the closing bracket. */
export function* readArray(reader: TextReader, callOf: ToolCallConverter): GrammarStep<BlockResult> {
  const reading = yield* readRow(reader, callOf, function* () {
    yield* reader.space()
    return yield* reader.literal(',')
  })
  return reading === 'misread' || (yield* reader.literal(']')) ? reading : 'misread'
}

/**
 * Reads a series of objects.
 * @param goesOn reads the separator, and returns whether another object follows
 */
function* readRow(
  reader: TextReader,
  callOf: ToolCallConverter,
  goesOn: () => GrammarStep<boolean>,
): GrammarStep<BlockResult> {
  const calls: OutputToolCall[] = []
  let isCalls = true
  do {
    const object = yield* readObject(reader)
    if (object === undefined) return 'misread'
    const call = callOf(object.members)
    if (call === undefined) isCalls = false
    else calls.push(...call)
  } while (yield* goesOn())
  return isCalls ? calls : 'malformed'
}

/** Reads the arguments of a tool call whose name is outside the JSON. */
export function* readArguments(reader: TextReader, call: ToolCallHead): GrammarStep<BlockResult> {
  const object = yield* readObject(reader)
  if (object === undefined) return 'misread'
  return call.name === '' ? 'malformed' : [{ ...call, arguments: object.text }]
}

/** Reads arguments of any JSON type, as vLLM does, in a block whose closing marker confirms the tool call. */
export function* readJsonArguments(reader: TextReader, call: ToolCallHead): GrammarStep<BlockResult> {
  const json = yield* readJson(reader)
  if (json === undefined) return 'misread'
  return call.name === '' ? 'malformed' : [{ ...call, arguments: json }]
}

/** Reads the JSON value that comes next and skips the space before it. Returns undefined if none comes next. */
function* readJson(reader: TextReader): GrammarStep<string | undefined> {
  yield* reader.space()
  if (startsJson(yield* reader.peek())) {
    const scanner = new JsonScanner()
    const text = yield* reader.scan(scanner)
    return scanner.isWhole ? text : undefined
  }
  const scalar = yield* reader.scan(new RunScanner(/[-+.\w]*/y))
  return SCALAR.test(scalar) ? scalar : undefined
}

/** Returns whether an object, a list or a string begins with this character. */
export function startsJson(character: string): boolean {
  return character !== '' && '{["'.includes(character)
}

/** Returns whether the block ends here: with its marker, or with the text, which may lack the marker. */
export function* endsBlock(reader: TextReader, close: string): GrammarStep<boolean> {
  yield* reader.space()
  return (yield* reader.literal(close)) || (yield* reader.atEnd())
}

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
