/** Converts rows to the columns of a Parquet file. */
import type { SchemaElement } from 'hyparquet'
import {
  type ColumnShape,
  type ColumnShapes,
  type ColumnValue,
  fit,
  inferShape,
  toStorable,
} from './shape.ts'

export type DatasetRow = { readonly [column: string]: ColumnValue }

/** The columns of a Parquet file, with their schema. */
export interface ParquetColumns {
  schema: SchemaElement[]
  columnData: { name: string; data: unknown[] }[]
}

/**
 * Returns the columns of rows, in the order in which the rows name them.
 * @param all the rows from which the types are inferred: these rows, and those of other splits, so that the files have
 *   one schema and can be read as one data set
 */
export function inferColumns(rows: readonly DatasetRow[], all: readonly DatasetRow[] = rows): ParquetColumns {
  const shape = inferShape(all)
  return toColumns(shape.kind === 'struct' ? shape.fields : new Map(), rows)
}

/** Returns the columns of rows with known shapes. */
export function toColumns(columns: ColumnShapes, rows: readonly DatasetRow[]): ParquetColumns {
  return {
    schema: [{ name: 'root', num_children: columns.size }, ...elementsIn(columns)],
    columnData: [...columns].map(([name, column]) => ({
      name,
      data: rows.map((row) => fit(row[name], column)),
    })),
  }
}

const PRIMITIVES = {
  boolean: { type: 'BOOLEAN' },
  integer: { type: 'INT64' },
  number: { type: 'DOUBLE' },
  text: { type: 'BYTE_ARRAY', converted_type: 'UTF8', logical_type: { type: 'STRING' } },
} as const satisfies Record<string, Partial<SchemaElement>>

const elementsIn = (fields: ColumnShapes) => [...fields].flatMap((field) => toSchemaElements(...field))

/**
 * Returns the schema of a column. Every value is nullable, as in files that pyarrow writes; a list has the three levels
 * that the format defines.
 */
function toSchemaElements(name: string, shape: ColumnShape): SchemaElement[] {
  const column = toStorable(shape)
  const optional = { name, repetition_type: 'OPTIONAL' } as const
  if (column.kind === 'list') {
    return [
      { ...optional, num_children: 1, converted_type: 'LIST', logical_type: { type: 'LIST' } },
      { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
      ...toSchemaElements('element', column.of),
    ]
  }
  if (column.kind === 'struct') {
    return [{ ...optional, num_children: column.fields.size }, ...elementsIn(column.fields)]
  }
  return [{ ...optional, ...PRIMITIVES[column.kind === 'null' ? 'text' : column.kind] }]
}
