/** The table of vLLM's and SGLang's output parsers in docs/token-mode.md, by name. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { findParser, UNSUPPORTED_PARSERS } from '../../src/proxy/tokens/parsers/choose-parser.ts'

interface ParserNames {
  tool_calls: string[]
  reasoning: string[]
}

/** The parser names that each engine registers. */
interface EngineParsers {
  vllm: ParserNames
  sglang: ParserNames
}

const FILE = join(import.meta.dirname, '../unit/proxy/tokens/parsers/fixtures/engine-parsers.json')

export function readEngineParsers(): EngineParsers {
  return JSON.parse(readFileSync(FILE, 'utf8')) as EngineParsers
}

/** Returns each registered name with the columns of the table that it belongs to. */
export function listNames({ vllm, sglang }: EngineParsers): Map<string, readonly boolean[]> {
  const columns = [vllm.tool_calls, vllm.reasoning, sglang.tool_calls, sglang.reasoning]
  const names = [...new Set(columns.flat())].sort()
  return new Map(names.map((name) => [name, columns.map((column) => column.includes(name))]))
}

/** Returns the table, in Markdown. */
export function createParserTable(parsers: EngineParsers): string {
  const namesByParser = new Map<string, string[]>()
  for (const name of listNames(parsers).keys()) {
    const parser = UNSUPPORTED_PARSERS.has(name) ? 'not read' : `\`${findParser(name).name}\``
    namesByParser.set(parser, [...(namesByParser.get(parser) ?? []), `\`${name}\``])
  }
  const rows = [...namesByParser].sort(
    ([a], [b]) => Number(a === 'not read') - Number(b === 'not read') || (a < b ? -1 : 1),
  )
  return [
    '| read as | names |',
    '|---|---|',
    ...rows.map(([parser, names]) => `| ${parser} | ${names.join(', ')} |`),
  ].join('\n')
}
