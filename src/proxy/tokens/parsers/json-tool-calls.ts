/**
 * Calls written as JSON objects.
 *
 * A closing marker inside a string of the JSON belongs to the string. If the string turns out not to end well, the
 * block is `misread` and ends at that marker, and what is behind it is read again. That stays linear: whatever of it
 * may begin a string anew is a quote that ended the misread string, and JSON that goes on behind it is outside of
 * strings where the other is inside, so it does not survive the next marker.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import type { BlockResult, Markers, ToolCallSyntax } from './block-parser.ts'
import { JsonScanner } from './json-scanner.ts'
import type { OutputToolCall } from './output-delta.ts'
import type { Reading, TextReader } from './text-reader.ts'

interface ObjectText {
  text: string
  /** Key and text of the value. */
  members: ReadonlyMap<string, string>
}

/**
 * Reads the JSON object that comes next, without the space before it; undefined if none does.
 * @param begun what was read of it before
 */
export function* readObject(reader: TextReader, begun = ''): Reading<ObjectText | undefined> {
  if (begun === '') {
    yield* reader.space()
    if ((yield* reader.peek()) !== '{') return undefined
  }
  const scanner = new JsonScanner()
  scanner.read(begun, 0)
  const text = begun + (yield* reader.scan(scanner))
  return scanner.isWhole ? { text, members: scanner.getMembers(text) } : undefined
}

/** The names that a family writes the parts of a call under. */
export interface ToolCallKeys {
  name: string
  /** The first of them that is there. */
  arguments: readonly string[]
  /** `null`: the model's ids are not the agent's, for example because each turn counts from 0 again. */
  id?: string | null
}

/** What stands between two markers: an object with a name and an object of arguments. */
export function objectToolCallSyntax(open: string, close: string, keys: ToolCallKeys): ToolCallSyntax {
  return {
    opens: [open],
    close,
    *read(reader) {
      const object = yield* readObject(reader)
      const isClosed = object !== undefined && (yield* endsBlock(reader, close))
      return isClosed ? (namedCall(object.members, keys) ?? 'malformed') : 'misread'
    },
  }
}

/** An array of such objects between two markers. The closing one may be left out: the array ends by itself. */
export function arrayToolCallSyntax(
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

/** Such objects one behind another between two markers. */
export function sequenceToolCallSyntax(open: string, close: string, keys: ToolCallKeys): ToolCallSyntax {
  return {
    opens: [open],
    close,
    *read(reader) {
      const callOf: CallOf = (members) => namedCall(members, keys)
      return yield* readRow(reader, callOf, function* () {
        return !(yield* endsBlock(reader, close))
      })
    },
  }
}

/**
 * Calls whose id and name stand before their JSON, each with a marker behind it.
 * @param headEnds of an id, if there is one, and of the name
 * @param headOf what the texts before them say, where that is more than the two; undefined: of no call
 */
export function headerToolCallSyntax(
  open: string,
  headEnds: readonly string[],
  rest: { close: string; wrapper?: Markers },
  headOf: (heads: readonly string[]) => ToolCallHead | undefined = bareHead,
): ToolCallSyntax {
  const { close } = rest
  const ends = headEnds.map((end) => new MarkerSet([end, close]))
  return {
    ...rest,
    opens: [open],
    *read(reader) {
      const heads: string[] = []
      for (const [at, end] of ends.entries()) {
        const { text, marker } = yield* reader.upTo(end)
        if (marker !== headEnds[at]) return 'malformed'
        heads.push(text.trim())
      }
      const head = headOf(heads)
      if (head === undefined) return 'malformed'
      const reading = yield* readArguments(reader, head)
      if (!Array.isArray(reading)) return reading
      return (yield* endsBlock(reader, close)) ? reading : 'misread'
    },
  }
}

type ToolCallHead = Omit<OutputToolCall, 'arguments'>

function bareHead(heads: readonly string[]): ToolCallHead {
  const [name = '', id] = heads.toReversed()
  return { ...(id && { id }), name }
}

/** A JSON array of such objects, or a single one. */
export function* readNamedCalls(reader: TextReader, keys: ToolCallKeys): Reading<BlockResult> {
  const callOf: CallOf = (members) => namedCall(members, keys)
  yield* reader.space()
  if (yield* reader.literal('[')) return yield* readArray(reader, callOf)
  const object = yield* readObject(reader)
  return object === undefined ? 'misread' : (callOf(object.members) ?? 'malformed')
}

/** The call that the members of an object describe; undefined if they describe none. */
type CallOf = (members: ReadonlyMap<string, string>) => OutputToolCall[] | undefined

/** An array's objects, behind its opening bracket, and the closing one. */
export function* readArray(reader: TextReader, callOf: CallOf): Reading<BlockResult> {
  const reading = yield* readRow(reader, callOf, function* () {
    yield* reader.space()
    return yield* reader.literal(',')
  })
  return reading === 'misread' || (yield* reader.literal(']')) ? reading : 'misread'
}

/** @param goesOn reads what is between two objects, if another one is to come */
function* readRow(reader: TextReader, callOf: CallOf, goesOn: () => Reading<boolean>): Reading<BlockResult> {
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

/** A call whose name stands outside the JSON. */
export function* readArguments(reader: TextReader, call: ToolCallHead): Reading<BlockResult> {
  const object = yield* readObject(reader)
  if (object === undefined) return 'misread'
  return call.name === '' ? 'malformed' : [{ ...call, arguments: object.text }]
}

/** Whether the block ends here: with its marker, or with the text, which may lack the marker. */
export function* endsBlock(reader: TextReader, close: string): Reading<boolean> {
  yield* reader.space()
  return (yield* reader.literal(close)) || (yield* reader.atEnd())
}

export function namedCall(
  members: ReadonlyMap<string, string>,
  keys: ToolCallKeys,
): OutputToolCall[] | undefined {
  const name = parseString(members.get(keys.name))
  const written = keys.arguments.map((key) => members.get(key)).find((value) => value !== undefined)
  if (name === undefined || name === '' || !written?.startsWith('{')) return undefined
  const id = keys.id === null ? undefined : parseString(members.get(keys.id ?? 'id'))
  return [{ ...(id && { id }), name, arguments: written }]
}

function parseString(json: string | undefined): string | undefined {
  return json?.startsWith('"') ? (JSON.parse(json) as string) : undefined
}
