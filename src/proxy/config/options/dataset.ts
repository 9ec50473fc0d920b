/** Options of the commands that make data sets. */
import type { CommandSpec, ConfigOf } from '../option.ts'

export const DATASET_HARBOR = {
  name: 'dataset harbor',
  summary: "Make a data set with verl's columns from Harbor task directories, one Parquet file per split",
  envPrefix: 'LLM_PROXY_',
  options: {
    train: {
      flag: 'train',
      type: 'directory',
      flagOnly: true,
      group: 'Tasks',
      help: 'Tasks for train.parquet: directories with task.toml and instruction.md, at any depth up to 6',
    },
    val: {
      flag: 'val',
      type: 'directory',
      flagOnly: true,
      group: 'Tasks',
      help: 'Tasks for val.parquet',
    },
    limit: {
      flag: 'limit',
      type: 'integer',
      min: '1',
      flagOnly: true,
      group: 'Tasks',
      help: 'At most this many per split, the first by name',
    },
    out: {
      flag: 'out',
      type: 'directory',
      flagOnly: true,
      group: 'Output',
      help: 'Directory for the files; a file that would not change is left alone',
    },
    dataSource: {
      flag: 'data-source',
      type: 'text',
      default: 'harbor',
      flagOnly: true,
      group: 'Output',
      help: 'Name of the data set, in the column data_source',
    },
  },
} as const satisfies CommandSpec

export type DatasetHarborConfig = ConfigOf<typeof DATASET_HARBOR>
