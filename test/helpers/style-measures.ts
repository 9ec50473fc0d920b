/** Measures the style of the code: `test/unit/style.test.ts` compares the counts with a baseline. */

/** A source file or a page. */
export interface SourceText {
  path: string
  text: string
}

export interface StyleMeasures {
  /** The number of type names that begin with a participle. */
  participleTypes: number
  /** The number of functions whose names end in `Of`. */
  ofFunctions: number
  /** The number of exported type names that are declared in more than one file. */
  repeatedTypes: number
  /** The number of {@link BANNED_WORDS} in comments, messages and names. */
  codeWords: number
  /** The number of {@link BANNED_WORDS} in pages, outside of quotations and code. */
  pageWords: number
}

const IRREGULAR =
  'Said|Told|Kept|Held|Given|Known|Written|Spoken|Shown|Seen|Found|Sent|Lost|Begun|Drawn|Learnt|Built|Made|Put|Taken|Got|Read|Spent|Left'
const PARTICIPLE = new RegExp(`^(?:[A-Z][a-z]+ed|${IRREGULAR})(?=[A-Z]|$)`)
/** `Read` and `Found` begin names of functions in camelCase, and types of readers. */
const PARTICIPLE_EXCEPTIONS = /^(?:Read(?:er|able|Only)|Need|Feed|Seed|Speed|Embed)/

const BANNED_WORDS =
  /\b(?:nobody|whoever|somebody|anew|mend(?:s|ed)?|at hand|is away|by now|for nothing|call(?:s|ed)? off)\b/gi

/** Declarations start a line, as the formatter ensures. */
const TYPE = /^ *(export )?(?:declare )?(?:abstract )?(?:interface|class|type) ([A-Z]\w*)/gm
const FUNCTION = /^ *(?:export )?(?:async )?function\*? (\w+)|^ {2}(?:static )?(?:async )?\*?(#?\w+)\(.*\{$/gm

/**
 * Counts in TypeScript files and Markdown pages.
 * @returns the counts, and the examples behind them by the name of the count
 */
export function measureStyle(
  code: readonly SourceText[],
  pages: readonly SourceText[],
): { measures: StyleMeasures; typeCount: number; examples: Record<keyof StyleMeasures, string[]> } {
  const types = code.flatMap(({ path, text }) =>
    [...text.matchAll(TYPE)].map(([, exported, name]) => ({ path, name: name!, isExported: !!exported })),
  )
  const examples = {
    participleTypes: types.map(({ name }) => name).filter(isParticiple),
    ofFunctions: code.flatMap(({ path, text }) => findOfFunctions(text).map((name) => `${path}: ${name}`)),
    repeatedTypes: findRepeated(types),
    codeWords: code.flatMap(({ path, text }) => findWords(path, text)),
    pageWords: pages.flatMap(({ path, text }) => findWords(path, withoutQuotations(text))),
  }
  const count = (key: keyof StyleMeasures) => examples[key].length
  const measures = {
    participleTypes: count('participleTypes'),
    ofFunctions: count('ofFunctions'),
    repeatedTypes: count('repeatedTypes'),
    codeWords: count('codeWords'),
    pageWords: count('pageWords'),
  }
  return { measures, typeCount: new Set(types.map(({ name }) => name)).size, examples }
}

function isParticiple(name: string): boolean {
  return PARTICIPLE.test(name) && !PARTICIPLE_EXCEPTIONS.test(name)
}

function findOfFunctions(text: string): string[] {
  return [...text.matchAll(FUNCTION)]
    .map((match) => match[1] ?? match[2]!)
    .filter((name) => /[a-z]Of$/.test(name))
}

function findRepeated(types: readonly { path: string; name: string; isExported: boolean }[]): string[] {
  const pathsByName = new Map<string, Set<string>>()
  for (const { path, name, isExported } of types) {
    if (isExported) pathsByName.set(name, (pathsByName.get(name) ?? new Set()).add(path))
  }
  return [...pathsByName].filter(([, paths]) => paths.size > 1).map(([name]) => name)
}

function findWords(path: string, text: string): string[] {
  return [...text.matchAll(BANNED_WORDS)].map(([word]) => `${path}: ${word}`)
}

/** Removes code blocks, code spans and text between quotation marks. */
function withoutQuotations(text: string): string {
  return text.replace(/^```.*?^```/gms, '').replace(/`[^`\n]*`|"[^"\n]*"/g, '')
}
