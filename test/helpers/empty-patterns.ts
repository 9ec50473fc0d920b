/** Finds patterns of `t.match` that verify nothing: `[]` and `{}` match any array and object. */
import { writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import type { Node, SourceFile } from 'typescript/unstable/ast'
import {
  isArrayLiteralExpression,
  isCallExpression,
  isObjectLiteralExpression,
  isPropertyAccessExpression,
  isSpreadElement,
} from 'typescript/unstable/ast/is'
// Only a parser distinguishes a pattern from other arguments. The interface is marked unstable; the lock file pins the
// version.
import { API } from 'typescript/unstable/sync'

/**
 * Finds `[]` and `{}` in the patterns of files. A `{}` that is an element of an array is permitted, because it verifies
 * that the array has an object there.
 * @param paths of the files, relative to `root`
 * @param directory an empty directory for the parser's configuration
 * @returns the file, the line and the text of each
 */
export function findEmptyPatterns(root: string, paths: readonly string[], directory: string): string[] {
  const files = paths.map((path) => join(root, path))
  // Without resolution, the parser reads no other files.
  const compilerOptions = { noResolve: true, noLib: true, types: [] }
  const project = join(directory, 'tsconfig.json')
  writeFileSync(project, JSON.stringify({ compilerOptions, files }))
  const compiler = new API({ cwd: directory })
  try {
    const { program } = compiler.updateSnapshot({ openProject: project }).getProjects()[0]!
    return files.flatMap((file) => {
      const source = program.getSourceFile(file)!
      return findPatterns(source).flatMap((pattern) =>
        findEmpty(pattern).map((node) => `${relative(root, file)}:${describe(source, node)}`),
      )
    })
  } finally {
    compiler.close()
  }
}

/** Returns the second arguments of `t.match`, or of `match` of another object. */
function findPatterns(node: Node): Node[] {
  const patterns: Node[] = []
  if (isCallExpression(node) && isPropertyAccessExpression(node.expression)) {
    const pattern = node.arguments[1]
    if (pattern !== undefined && node.expression.name.text === 'match') patterns.push(pattern)
  }
  node.forEachChild((child) => void patterns.push(...findPatterns(child)))
  return patterns
}

/** @param isSpread whether the node is spread into an array, which `[]` then extends by nothing */
function findEmpty(node: Node, isSpread = false): Node[] {
  const isArray = isArrayLiteralExpression(node)
  if (isArray && node.elements.length === 0) return isSpread ? [] : [node]
  if (isObjectLiteralExpression(node) && node.properties.length === 0)
    return isArrayLiteralExpression(node.parent) ? [] : [node]
  const found: Node[] = []
  const isChildSpread = isSpreadElement(node) || (isSpread && !isArray && !isObjectLiteralExpression(node))
  node.forEachChild((child) => void found.push(...findEmpty(child, isChildSpread)))
  return found
}

function describe(source: SourceFile, node: Node): string {
  const { line } = source.getLineAndCharacterOfPosition(node.getStart(source))
  return `${line + 1} ${source.text.split('\n')[line]!.trim()}`
}
