"""Methods side by side: methods against oversmoothing by depth, all methods where features are missing."""
