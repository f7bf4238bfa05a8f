"""The attack, as tests of our own: faults at every call that touches the disk, files that lie, load, and time.

What the first attack from outside found, and where a test shows that it is gone:

- Code from a swapped pickle: ``tasks/test_planetoid.py``,
  ``test_a_file_that_is_swapped_after_it_was_opened_is_not_read``.
- Files of the user's overwritten: ``training/test_folder.py``,
  ``test_a_folder_with_a_file_that_is_not_ours_is_refused``.
- A table of constant features: ``tasks/test_columns.py``, ``test_a_constant_column_that_is_kept_has_size_one``.
- Other weights in threads: ``test_fitting.py``,
  ``test_a_seed_is_the_same_run_in_any_thread_while_others_train_and_draw``.
- Changed layers that the fused stack ignored: ``nn``,
  ``test_a_changed_layer_is_computed_as_it_is_with_and_without_a_trace``.
- Class 0 for scores that are not finite: ``test_fitting.py``, ``test_scores_that_are_not_finite_are_no_prediction``.
- Links that count runs twice or do not end: ``cli/test_report.py``, ``test_links_count_no_run_twice_and_loops_end``.
- Numbers that were changed silently: ``graph/test_edges.py``, ``graph/test_propagation.py``, ``tasks/test_task.py``,
  ``test_equal_class_names_are_refused``; ``test_estimators.py``,
  ``test_minus_1_is_a_class_or_no_label_only_if_it_is_said``.
- A path that is not UTF-8: ``tasks/test_reading.py``,
  ``test_a_path_that_is_not_utf8_is_refused_before_anything_is_read``.
- Faults of a journal: ``tuning/test_storage.py``, ``test_a_journal_that_fails_meanwhile_gets_a_sentence`` and those
  around it.
- Many columns: ``tasks/test_reading.py``, ``test_a_table_of_20000_columns_is_read_in_seconds``.
- Bad lines of records: ``training/test_records.py``, ``report/test_page.py``,
  ``test_numbers_at_the_edge_of_what_a_float_holds_make_a_page``.
- Bombs: ``tasks/test_reading.py``, ``test_a_parquet_file_that_unpacks_to_far_more_than_its_size_is_refused``;
  ``tasks/test_archive.py``, ``test_an_array_that_claims_to_be_larger_than_the_memory``.
- Forged models and checkpoints: ``training/test_saving.py``,
  ``test_a_file_that_asks_for_a_huge_network_is_refused_before_one_is_built``; ``training/test_folder.py``,
  ``test_a_forged_checkpoint_is_refused_with_what_helps``.
- Formulas and markup in names: ``training/test_predictions.py``,
  ``test_a_name_that_a_spreadsheet_would_run_is_kept_and_said``; ``training/test_model_card.py``,
  ``test_a_name_makes_no_link_no_entity_no_cell_and_steers_no_terminal``.
- Links, deleted locks and signals: ``training/test_records.py``, ``test_records_are_not_written_through_a_link``;
  ``training/test_folder.py``, ``test_deleting_the_lock_file_lets_nobody_in``; ``tuning/test_storage.py``,
  ``test_deleting_the_lock_file_lets_no_second_worker_in``; ``cli/test_terminal.py``.
- The time of a report: ``faults/million.py``.
- More processes than cores: ``cli/test_processes.py``, ``test_many_more_processes_than_cores_are_questioned``.
  Nothing to resume: ``cli/test_bad_input.py``.
"""
