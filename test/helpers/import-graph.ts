/** The import graph of `src/` and `tools/`, and checks of its rules. */
import { isBuiltin } from 'node:module'
import { dirname, join, relative } from 'node:path'
// Only the compiler's own list of imports handles comments, strings and types correctly. The interface is marked
// unstable; the lock file pins the version.
import { API } from 'typescript/unstable/sync'

/**
 * The imports of each file, type-only and dynamic imports included. Files are relative to the root (`src/main.ts`),
 * libraries are as written (`pino`, `node:fs`).
 */
export type ImportGraph = ReadonlyMap<string, readonly string[]>

export interface ArchitectureRules {
  /** Folders and files, and which of them each may import besides itself. The most specific one applies. */
  parts: Readonly<Record<string, readonly string[]>>
  /** The part that may import a library; exceptionally more than one. */
  owners: Readonly<Record<string, string | readonly string[]>>
  /** Libraries that any part may import. */
  shared: readonly string[]
}

/**
 * Reads the TypeScript files below `src` and `tools`.
 * @param projects the configurations that have them, relative to `root`
 */
export function readImportGraph(root: string, projects = ['tsconfig.json']): ImportGraph {
  return new Map(projects.flatMap((project) => getImports(root, project)))
}

function getImports(root: string, project: string): (readonly [string, readonly string[]])[] {
  const compiler = new API({ cwd: root })
  try {
    const snapshot = compiler.updateSnapshot({ openProject: join(root, project) })
    const program = snapshot.getProjects()[0]!.program
    const files = program
      .getSourceFileNames()
      .filter((file) => FOLDERS.some((folder) => file.startsWith(join(root, folder))))
    return files.map((file) => {
      const source = program.getSourceFile(file)!
      const imported = source.imports.map((literal) => (literal as unknown as { text: string }).text)
      const targets = [...imported, ...findThreads(source.text)].map((name) => resolve(root, file, name))
      return [relative(root, file), [...new Set(targets)]] as const
    })
  } finally {
    compiler.close()
  }
}

/** The folders of our code: the program and its build tools. */
const FOLDERS = ['src/', 'tools/']

/** Finds worker threads, which name their code as `new URL('./writer.ts', import.meta.url)`. */
function findThreads(text: string): string[] {
  return [...text.matchAll(/new URL\('(\.[^']*\.ts)', import\.meta\.url\)/g)].map((match) => match[1]!)
}

function resolve(root: string, file: string, name: string): string {
  return name.startsWith('.') ? relative(root, join(dirname(file), name)) : name
}

/** Returns every violated rule as a sentence. */
export function findViolations(graph: ImportGraph, rules: ArchitectureRules): string[] {
  return [...graph].flatMap(([file, targets]) => {
    const part = findPart(file, rules)
    if (part === undefined) return [`${file} is in no part: add its folder to the rules`]
    return targets
      .flatMap((target) => findProblem(part, target, rules) ?? [])
      .map((reason) => `${file} ${reason}`)
  })
}

function findProblem(part: string, target: string, rules: ArchitectureRules): string | undefined {
  if (isBuiltin(target) || target === 'package.json') return undefined
  if (isLibrary(target)) return findLibraryProblem(part, target, rules)
  const imported = findPart(target, rules)
  if (imported === undefined) return `imports ${target}, which is in no part`
  if (imported === part || rules.parts[part]!.includes(imported)) return undefined
  return `imports ${target}: ${part} must not know ${imported}`
}

function findLibraryProblem(part: string, target: string, rules: ArchitectureRules): string | undefined {
  const library = target.split('/', target.startsWith('@') ? 2 : 1).join('/')
  if (rules.shared.includes(library)) return undefined
  const owner = rules.owners[library]
  if (owner === undefined) return `imports ${library}, which has no owner in the rules`
  const owners = [owner].flat()
  return owners.includes(part) ? undefined : `imports ${library}, which belongs to ${owners.join(' and ')}`
}

/** Returns whether a target is a library: imports below the root begin with one of our folders, or leave the root. */
function isLibrary(target: string): boolean {
  return !/^(\.\.|src|tools|test|bin|docs|python)\//.test(target)
}

function findPart(file: string, rules: ArchitectureRules): string | undefined {
  const holders = Object.keys(rules.parts).filter((part) => file === part || file.startsWith(`${part}/`))
  return holders.toSorted((a, b) => b.length - a.length)[0]
}

/**
 * Returns folders that import each other, directly or indirectly, each cycle as a sorted list. A folder and one inside
 * it count as one: the outer one combines the contents of the inner ones.
 */
export function findFolderCycles(graph: ImportGraph): string[][] {
  const edges = new Map<string, Set<string>>()
  for (const [file, targets] of graph) {
    const from = dirname(file)
    const folders = targets.filter((target) => graph.has(target)).map((target) => dirname(target))
    const reached = edges.get(from) ?? new Set()
    for (const folder of folders) if (!contains(from, folder) && !contains(folder, from)) reached.add(folder)
    edges.set(from, reached)
  }
  return findCycles(edges)
}

/** Returns files that import each other, even for a type alone, each cycle as a sorted list. */
export function findFileCycles(graph: ImportGraph): string[][] {
  return findCycles(new Map([...graph].map(([file, targets]) => [file, new Set(targets)])))
}

function contains(outer: string, inner: string): boolean {
  return inner === outer || inner.startsWith(`${outer}/`)
}

function findCycles(edges: ReadonlyMap<string, ReadonlySet<string>>): string[][] {
  const reach = new Map([...edges.keys()].map((folder) => [folder, findReachable(folder, edges)]))
  const cycles = new Map<string, string[]>()
  for (const [folder, reached] of reach) {
    if (!reached.has(folder)) continue
    const members = [...reached].filter((other) => reach.get(other)?.has(folder)).sort()
    cycles.set(members.join(), members)
  }
  return [...cycles.values()]
}

function findReachable(start: string, edges: ReadonlyMap<string, ReadonlySet<string>>): Set<string> {
  const seen = new Set<string>()
  const waiting = [...(edges.get(start) ?? [])]
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    if (seen.has(next)) continue
    seen.add(next)
    waiting.push(...(edges.get(next) ?? []))
  }
  return seen
}
